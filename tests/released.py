"""Small files with the structure of the checkpoints that SciMult's authors released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor
from transformers import BertConfig, BertModel

WIDTH, LAYERS, HEADS = 16, 4, 2


def released_encoder(
    vocabulary: int, moe_type: str | None = "mod2:attn", experts: int = 3, seed: int = 0
) -> dict[str, Tensor]:
    """Return the weights below ``ctx_model.encoder.``: a BERT with distinct experts."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        key: torch.randn(value.shape, generator=generator) * 0.3
        for key, value in BertModel(bert_config(vocabulary)).state_dict().items()
    }
    weights["embeddings.position_ids"] = torch.arange(64)[None]
    if moe_type is None:
        return weights
    layers, part = moe_type.split(":")
    n = int(layers.removeprefix("mod"))
    for layer in range(n - 1, LAYERS, n):
        for plain, numbered in expert_names(f"encoder.layer.{layer}", part):
            for kind in ("weight", "bias"):
                shape = weights.pop(f"{plain}.{kind}").shape
                for expert in range(experts):
                    drawn = torch.randn(shape, generator=generator) * 0.3
                    weights[f"{numbered.format(expert)}.{kind}"] = drawn
    return weights


def expert_names(layer: str, part: str) -> list[tuple[str, str]]:
    """Return (name in BERT, template with the expert's number) of a layer's experts."""
    if part == "attn":
        own = f"{layer}.attention.self"
        names = [(f"{own}.{name}", f"{own}.moe_{name}.{{}}") for name in ("query", "key", "value")]
        dense = f"{layer}.attention.output"
        return [*names, (f"{dense}.dense", f"{dense}.moe_dense.{{}}")]
    moe = f"{layer}.moe_layer"
    return [
        (f"{layer}.intermediate.dense", f"{moe}.interm_layers.{{}}.dense"),
        (f"{layer}.output.dense", f"{moe}.output_layers.{{}}.dense"),
        (f"{layer}.output.LayerNorm", f"{moe}.output_layers.{{}}.LayerNorm"),
    ]


def bert_config(vocabulary: int) -> BertConfig:
    """Return the sizes of the small model."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=64,
        attn_implementation="eager",
    )


def expert_as_bert(
    encoder: dict[str, Tensor], vocabulary: int, expert: int, config: BertConfig | None = None
) -> BertModel:
    """Return the plain BERT of one expert of ``released_encoder``, key by key."""
    weights = {}
    for key, value in encoder.items():
        name = key
        for layer in range(LAYERS):
            for part in ("attn", "fwd"):
                for plain, numbered in expert_names(f"encoder.layer.{layer}", part):
                    name = name.replace(numbered.format(expert) + ".", plain + ".")
        weights[name] = value
    bert = BertModel(config or bert_config(vocabulary))
    bert.load_state_dict({key: weights[key] for key in bert.state_dict()})
    return bert.eval()


def released_state(
    encoder: dict[str, Tensor],
    moe_type: str | None = "mod2:attn",
    experts: int = 3,
    **parameters: Any,
) -> dict[str, Any]:
    """Return the content of a file: OmegaConf objects, both towers, optimizer state."""
    settings = {
        "pretrained_model_cfg": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
        "projection_dim": 0,
        "mean_pool": False,
        "factor_rep": False,
        "shared_encoder": True,
        "q_rep_method": "bos",
        "use_moe": moe_type is not None,
        "num_expert": experts if moe_type else 0,
        "use_infer_expert": moe_type is not None,
        "per_layer_gating": False,
        "moe_type": moe_type or "mod3:fwd",
        **parameters,
    }
    moments = {
        number: {"step": 7, "exp_avg": torch.zeros(v.shape), "exp_avg_sq": torch.zeros(v.shape)}
        for number, v in enumerate(encoder.values())
    }
    groups = [{"params": list(moments), "lr": 3e-4, "betas": (0.9, 0.999)}]
    towers = ("question_model", "ctx_model")
    return {
        "model_dict": {f"{t}.encoder.{k}": v for t in towers for k, v in encoder.items()},
        "optimizer_dict": {"state": moments, "param_groups": groups},
        "scheduler_dict": {"base_lrs": [3e-4], "last_epoch": 12, "lr_lambdas": [{}]},
        "offset": 0,
        "epoch": 20,
        "encoder_params": OmegaConf.create(settings),
    }


def save_released(path: Path, state: dict[str, Any]) -> Path:
    """Write ``state`` like the original training code."""
    torch.save(state, path)
    return path
