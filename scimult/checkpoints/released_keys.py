"""Rename the weights of SciMult's released checkpoints to ours and back.

Their encoder is a BERT whose expert layers have one copy per expert of the attention's linear
layers (``moe_query``, ``moe_key``, ``moe_value``, ``moe_dense``) or of the whole feed-forward unit
(``moe_layer``, as in TASER).
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from scimult.checkpoints.bert_keys import from_bert, take_joined, to_bert
from scimult.errors import CheckpointError
from scimult.models import EncoderConfig, ExpertLayout
from scimult.models.layouts import Sublayer

SUBLAYERS: dict[str, Sublayer] = {"attn": "attention", "fwd": "feed_forward"}
LAYER_SETS = (2, 3, 4, 6, 12)  # the N of ``modN`` in the original code
HEADS = "num_attention_heads"
_USUAL_HEADS = {128: 2, 256: 4, 512: 8, 768: 12, 1024: 16}
_QKV = ("query", "key", "value")
_MARKS: dict[Sublayer, str] = {
    "attention": r"attention\.self\.moe_query\.(\d+)\.weight",
    "feed_forward": r"moe_layer\.interm_layers\.(\d+)\.dense\.weight",
}
# Our names in a sub-layer and theirs in a block, for each expert.
_NAMES: dict[Sublayer, dict[str, str]] = {
    "attention": {"output.experts.{}": "attention.output.moe_dense.{}"},
    "feed_forward": {
        "experts.{}.intermediate": "moe_layer.interm_layers.{}.dense",
        "experts.{}.output": "moe_layer.output_layers.{}.dense",
        "experts.{}.norm": "moe_layer.output_layers.{}.LayerNorm",
    },
}
# BERT's layers that experts replace.
_REPLACED: dict[Sublayer, tuple[str, ...]] = {
    "attention": (*(f"attention.self.{part}" for part in _QKV), "attention.output.dense"),
    "feed_forward": ("intermediate.dense", "output.dense", "output.LayerNorm"),
}


def usual_heads(width: int) -> int | None:
    """Return the heads of BERT's own models of a width, which the files do not hold; None if none.

    Other widths have no usual number: MiniLM has 12 heads in 384, other models of 384 have 6.
    """
    return _USUAL_HEADS.get(width)


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
    for our_key, their_key in _pairs(config):
        if their_key in source:
            ours[our_key] = source.pop(their_key)
    for block, expert, kind in _experts(config, "attention"):
        names = [_qkv_name(block, part, expert, kind) for part in _QKV]
        name = f"blocks.{block}.attention.qkv.experts.{expert}.{kind}"
        ours |= take_joined(source, names, name, config.hidden_size)
    return ours | from_bert(source, config)


def to_released(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename our weights to the released names, without pooler and position ids."""
    replaced = tuple(
        f"encoder.layer.{block}.{name}."
        for sublayer, names in _REPLACED.items()
        for block, expert, kind in _experts(config, sublayer)
        for name in names
    )
    bert = to_bert(weights, config)
    released = {key: value for key, value in bert.items() if not key.startswith(replaced)}
    released |= {their_key: weights[our_key] for our_key, their_key in _pairs(config)}
    for block, expert, kind in _experts(config, "attention"):
        parts = weights[f"blocks.{block}.attention.qkv.experts.{expert}.{kind}"].chunk(3)
        for part, tensor in zip(_QKV, parts, strict=True):
            released[_qkv_name(block, part, expert, kind)] = tensor.contiguous()
    return released


def _qkv_name(block: int, part: str, expert: int, kind: str) -> str:
    return f"encoder.layer.{block}.attention.self.moe_{part}.{expert}.{kind}"


def _pairs(config: EncoderConfig) -> list[tuple[str, str]]:
    """Return our and their name of every expert parameter except query, key and value."""
    return [
        (
            f"blocks.{block}.{sublayer}.{ours.format(expert)}.{kind}",
            f"encoder.layer.{block}.{theirs.format(expert)}.{kind}",
        )
        for sublayer, names in _NAMES.items()
        for block, expert, kind in _experts(config, sublayer)
        for ours, theirs in names.items()
    ]


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
