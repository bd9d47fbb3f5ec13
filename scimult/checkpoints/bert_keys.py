"""Names and shapes of a Hugging Face BERT, to and from our encoder's.

Our encoder keeps query, key and value of a block in one linear (``qkv``), and every
sub-layer inside a bank of experts; a plain BERT fills expert 0 of each bank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.errors import CheckpointError
from scimult.models import EncoderConfig
from scimult.models.config import Pooling

_EMBEDDINGS = {
    "embeddings.words.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_types.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
}
_BLOCK = {
    "attention.output.experts.0": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "feed_forward.experts.0.intermediate": "intermediate.dense",
    "feed_forward.experts.0.output": "output.dense",
    "feed_forward.experts.0.norm": "output.LayerNorm",
}
_QKV = ("query", "key", "value")
# Heads that checkpoints carry beside the encoder; embeddings do not use them.
_UNUSED_PREFIXES = ("pooler.", "cls.", "embeddings.position_ids")


def bert_config(hf_config: dict[str, object], pooling: Pooling, path: object) -> EncoderConfig:
    """Translate the ``config.json`` of a BERT checkpoint.

    Raises
    ------
    CheckpointError
        If the architecture is not BERT or uses an option that our blocks do not have.
    """
    required = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    }
    for key, expected in required.items():
        value = hf_config.get(key, expected if key != "model_type" else None)
        if value != expected:
            raise CheckpointError(
                f"{key} of this checkpoint is not supported",
                path=path,  # type: ignore[arg-type]
                value=value,
                fix=f"use a BERT checkpoint with {key} {expected!r}",
            )
    return EncoderConfig.model_validate(
        {
            "vocab_size": hf_config["vocab_size"],
            "hidden_size": hf_config["hidden_size"],
            "num_blocks": hf_config["num_hidden_layers"],
            "num_heads": hf_config["num_attention_heads"],
            "intermediate_size": hf_config["intermediate_size"],
            "max_positions": hf_config["max_position_embeddings"],
            "token_types": hf_config["type_vocab_size"],
            "norm_eps": hf_config["layer_norm_eps"],
            "dropout": hf_config["hidden_dropout_prob"],
            "attention_dropout": hf_config["attention_probs_dropout_prob"],
            "initializer_range": hf_config["initializer_range"],
            "pooling": pooling,
        }
    )


def from_bert(weights: dict[str, Tensor], num_blocks: int) -> dict[str, Tensor]:
    """Rename BERT weights to ours; unknown keys keep their name, so that loading names them.

    Accepts the encoder alone or inside a model with heads (prefix ``bert.``), and the old
    spelling of LayerNorm parameters (``gamma``, ``beta``).
    """
    source = {_modern_name(key): value for key, value in weights.items()}
    source = {k: v for k, v in source.items() if not k.startswith(_UNUSED_PREFIXES)}
    ours: dict[str, Tensor] = {}
    for our_key, bert_key in _pairs(num_blocks):
        if bert_key in source:
            ours[our_key] = source.pop(bert_key)
    for block in range(num_blocks):
        for kind in ("weight", "bias"):
            names = [f"encoder.layer.{block}.attention.self.{part}.{kind}" for part in _QKV]
            if all(name in source for name in names):
                joined = torch.cat([source.pop(name) for name in names])
                ours[f"blocks.{block}.attention.qkv.experts.0.{kind}"] = joined
    return ours | source


def to_bert(weights: dict[str, Tensor], num_blocks: int) -> dict[str, Tensor]:
    """Rename a vanilla encoder's weights to those of ``transformers.BertModel`` (no pooler)."""
    bert = {theirs: weights[ours] for ours, theirs in _pairs(num_blocks) if ours in weights}
    for block in range(num_blocks):
        for kind in ("weight", "bias"):
            parts = weights[f"blocks.{block}.attention.qkv.experts.0.{kind}"].chunk(3)
            for part, tensor in zip(_QKV, parts, strict=True):
                bert[f"encoder.layer.{block}.attention.self.{part}.{kind}"] = tensor.contiguous()
    return bert


def _pairs(num_blocks: int) -> list[tuple[str, str]]:
    pairs = list(_EMBEDDINGS.items())
    for block in range(num_blocks):
        for ours, theirs in _BLOCK.items():
            for kind in ("weight", "bias"):
                pairs.append(
                    (f"blocks.{block}.{ours}.{kind}", f"encoder.layer.{block}.{theirs}.{kind}")
                )
    return pairs


def _modern_name(key: str) -> str:
    key = key.removeprefix("bert.")
    return key.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
