"""Rename the weights of SciMult's released checkpoints to ours and back.

Their encoder is a BERT whose expert layers have one copy per expert of the attention's linear
layers (``moe_query``, ``moe_key``, ``moe_value``, ``moe_dense``) or of the whole feed-forward unit
(``moe_layer``, as in TASER).
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from scimult.checkpoints.bert_keys import from_bert, to_bert
from scimult.errors import CheckpointError
from scimult.models import EncoderConfig, ExpertLayout
from scimult.models.layouts import Sublayer

SUBLAYERS: dict[str, Sublayer] = {"attn": "attention", "fwd": "feed_forward"}
LAYER_SETS = (2, 3, 4, 6, 12)  # the N of ``modN`` in the original code
_QKV = ("query", "key", "value")
_MARKS: dict[Sublayer, str] = {
    "attention": r"attention\.self\.moe_query\.(\d+)\.weight",
    "feed_forward": r"moe_layer\.interm_layers\.(\d+)\.dense\.weight",
}
# Our and their names inside one expert of one block.
_FEED_FORWARD = {
    "intermediate": "moe_layer.interm_layers.{}.dense",
    "output": "moe_layer.output_layers.{}.dense",
    "norm": "moe_layer.output_layers.{}.LayerNorm",
}


def find_layout(keys: list[str], path: Path) -> ExpertLayout | None:
    """Infer from weight names which blocks have experts, and how many.

    Raises
    ------
    CheckpointError
        If blocks or sub-layers have different numbers of experts.
    """
    sublayers: dict[Sublayer, dict[int, int]] = {}
    for sublayer, mark in _MARKS.items():
        for key in keys:
            if match := re.fullmatch(rf"encoder\.layer\.(\d+)\.{mark}", key):
                counts = sublayers.setdefault(sublayer, {})
                counts[int(match[1])] = counts.get(int(match[1]), 0) + 1
    if not sublayers:
        return None
    first = next(iter(sublayers.values()))
    count = next(iter(first.values()))
    for sublayer, counts in sublayers.items():
        if counts.keys() != first.keys() or set(counts.values()) != {count}:
            raise CheckpointError(
                "expert layers differ from each other",
                path=path,
                value={sublayer: counts},
                fix="expected the same blocks and the same number of experts everywhere",
            )
    return ExpertLayout(count=count, sublayers=list(sublayers), blocks=sorted(first))


def moe_type_of(layout: ExpertLayout, num_blocks: int) -> str:
    """Return the original code's name of an expert layout, such as ``mod2:attn``.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    for n in LAYER_SETS:
        for short, sublayer in SUBLAYERS.items():
            blocks = list(range(n - 1, num_blocks, n))
            if layout.sublayers == [sublayer] and layout.blocks == blocks:
                return f"mod{n}:{short}"
    raise CheckpointError(
        "the released structure has no name for this expert layout",
        value={"sublayers": layout.sublayers, "blocks": layout.blocks},
        fix="it supports experts of attention or feed-forward, in every 2nd, 3rd, 4th, 6th or "
        "12th block; export to another format",
    )


def moe_type_contradicts(moe_type: str, layout: ExpertLayout, num_blocks: int) -> bool:
    """Return whether ``modN:part`` contradicts the blocks or the sub-layer of the weights."""
    match = re.fullmatch(r"mod(\d+):(\w+)", moe_type)
    if match is None or int(match[1]) < 1 or match[2] not in SUBLAYERS:
        return False
    n = int(match[1])
    blocks = list(range(n - 1, num_blocks, n))
    return layout.blocks != blocks or layout.sublayers != [SUBLAYERS[match[2]]]


def from_released(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename weights to ours; unknown keys stay, so that loading reports them."""
    source, ours = dict(weights), {}
    for block, expert, kind in _experts(config, "attention"):
        theirs, own = f"encoder.layer.{block}.attention", f"blocks.{block}.attention"
        names = [f"{theirs}.self.moe_{part}.{expert}.{kind}" for part in _QKV]
        if all(name in source for name in names):
            joined = torch.cat([source.pop(name) for name in names])
            ours[f"{own}.qkv.experts.{expert}.{kind}"] = joined
        name = f"{theirs}.output.moe_dense.{expert}.{kind}"
        if name in source:
            ours[f"{own}.output.experts.{expert}.{kind}"] = source.pop(name)
    for block, expert, kind in _experts(config, "feed_forward"):
        for part, pattern in _FEED_FORWARD.items():
            name = f"encoder.layer.{block}.{pattern.format(expert)}.{kind}"
            if name in source:
                key = f"blocks.{block}.feed_forward.experts.{expert}.{part}.{kind}"
                ours[key] = source.pop(name)
    return ours | from_bert(source, config.num_blocks)


def to_released(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename our weights to the released names, without pooler and position ids."""
    theirs = to_bert(weights, config.num_blocks)
    for block, expert, kind in _experts(config, "attention"):
        name, own = f"encoder.layer.{block}.attention", f"blocks.{block}.attention"
        parts = weights[f"{own}.qkv.experts.{expert}.{kind}"].chunk(3)
        for part, tensor in zip(_QKV, parts, strict=True):
            theirs.pop(f"{name}.self.{part}.{kind}", None)
            theirs[f"{name}.self.moe_{part}.{expert}.{kind}"] = tensor.contiguous()
        theirs.pop(f"{name}.output.dense.{kind}", None)
        output = weights[f"{own}.output.experts.{expert}.{kind}"]
        theirs[f"{name}.output.moe_dense.{expert}.{kind}"] = output
    for block, expert, kind in _experts(config, "feed_forward"):
        name = f"encoder.layer.{block}"
        for plain in ("intermediate.dense", "output.dense", "output.LayerNorm"):
            theirs.pop(f"{name}.{plain}.{kind}", None)
        for part, pattern in _FEED_FORWARD.items():
            tensor = weights[f"blocks.{block}.feed_forward.experts.{expert}.{part}.{kind}"]
            theirs[f"{name}.{pattern.format(expert)}.{kind}"] = tensor
    return theirs


def _experts(config: EncoderConfig, sublayer: Sublayer) -> list[tuple[int, int, str]]:
    """Return (block, expert, "weight" or "bias") of every expert of a sub-layer."""
    layout = config.experts
    if layout is None or sublayer not in layout.sublayers:
        return []
    return [
        (block, expert, kind)
        for block in layout.blocks
        for expert in range(layout.count)
        for kind in ("weight", "bias")
    ]
