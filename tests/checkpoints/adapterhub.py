"""Folders in the format of the library ``adapters``, and a naive version of its forward pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertModel

# What version 3 of the library writes beside the options that matter.
OPTIONS: dict[str, Any] = {
    "adapter_residual_before_ln": False,
    "cross_adapter": False,
    "dropout": 0.0,
    "init_weights": "bert",
    "inv_adapter": None,
    "inv_adapter_reduction_factor": None,
    "is_parallel": False,
    "leave_out": [],
    "ln_after": False,
    "ln_before": False,
    "mh_adapter": False,
    "non_linearity": "relu",
    "original_ln_after": True,
    "original_ln_before": True,
    "output_adapter": True,
    "phm_dim": 4,
    "phm_layer": False,
    "reduction_factor": 4,
    "residual_before_ln": True,
    "scaling": 1.0,
    "shared_W_phm": False,
    "use_gating": False,
}


def adapter_weights(
    name: str,
    *,
    seed: int,
    width: int = 32,
    blocks: int = 4,
    factor: int = OPTIONS["reduction_factor"],
) -> dict[str, Tensor]:
    """Return random weights of a Pfeiffer adapter, under the names of a ``BertAdapterModel``."""
    generator = torch.Generator().manual_seed(seed)
    inner = width // factor
    shapes = {
        "adapter_down.0.weight": (inner, width),
        "adapter_down.0.bias": (inner,),
        "adapter_up.weight": (width, inner),
        "adapter_up.bias": (width,),
    }
    return {
        f"bert.encoder.layer.{block}.output.adapters.{name}.{tail}": 0.3
        * torch.randn(shape, generator=generator)
        for block in range(blocks)
        for tail, shape in shapes.items()
    }


def save_adapter(
    folder: Path,
    name: str,
    weights: dict[str, Any],
    *,
    options: dict[str, Any] | None = None,
    described: dict[str, Any] | None = None,
) -> Path:
    """Save an adapter; ``options`` and ``described`` change its configuration (None removes)."""
    folder.mkdir(parents=True)
    changed = {k: v for k, v in (OPTIONS | (options or {})).items() if v != "absent"}
    content = {
        "config": changed,
        "hidden_size": 32,
        "model_class": "BertAdapterModel",
        "model_name": "someone/base",
        "model_type": "bert",
        "name": name,
        "version": "3.2.1",
    }
    (folder / "adapter_config.json").write_text(json.dumps(content | (described or {})))
    torch.save(weights, folder / "pytorch_adapter.bin")
    return folder


@torch.no_grad()
def naive_cls(model: BertModel, adapter: dict[str, Tensor], name: str, ids: Tensor) -> Tensor:
    """Return [CLS] of a BERT with an adapter after each feed-forward layer, step by step."""
    x = model.embeddings(input_ids=ids)
    for number, layer in enumerate(model.encoder.layer):
        prefix = f"bert.encoder.layer.{number}.output.adapters.{name}."
        down, down_bias, up, up_bias = (
            adapter[prefix + tail]
            for tail in (
                "adapter_down.0.weight",
                "adapter_down.0.bias",
                "adapter_up.weight",
                "adapter_up.bias",
            )
        )
        x = layer.attention(x)[0]
        h = layer.output.dense(layer.intermediate(x))
        normed = layer.output.LayerNorm(h + x)
        change = torch.relu(normed @ down.T + down_bias) @ up.T + up_bias
        x = layer.output.LayerNorm(h + change + x)
    return x[:, 0]
