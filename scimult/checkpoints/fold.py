"""Fold one route of a model into a plain encoder of its family, which needs none of our code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.families import export_config, export_weights
from scimult.checkpoints.pretrained import Pretrained
from scimult.checkpoints.reading import FOLDED_KEY
from scimult.checkpoints.warm_start import in_bank
from scimult.checkpoints.weights import empty_model
from scimult.errors import CheckpointError, ConfigError
from scimult.models import EncoderConfig, ExpertLayout
from scimult.models.layouts import LowRankLayout
from scimult.tasks import tells_sides
from scimult.types import Role

Known = Mapping[type[BaseModel], frozenset[str]]

_UPDATE = re.compile(r"^(blocks\.\d+)\..*\.lora\.(\w+)\.experts\.(\d+)\.up\.weight$")
# The linear layer that a low-rank update changes, and which part of it.
_UPDATED = {
    "query": ("attention.qkv.experts.0", 0),
    "key": ("attention.qkv.experts.0", 1),
    "value": ("attention.qkv.experts.0", 2),
    "output": ("attention.output.experts.0", 0),
    "intermediate": ("feed_forward.experts.0.intermediate", 0),
    "projection": ("feed_forward.experts.0.output", 0),
}

# Settings that can be folded. Any other setting with a non-default value is something that a plain
# encoder cannot express, and raises.
_PLAIN: dict[type[BaseModel], frozenset[str]] = {
    PretrainedConfig: frozenset(
        "format version encoder tasks routing similarity normalise max_length provenance".split()
    ),
    EncoderConfig: frozenset(
        "family vocab_size hidden_size num_blocks num_heads intermediate_size max_positions "
        "position_offset token_types activation norm_eps dropout attention_dropout "
        "initializer_range pooling pooling_position modern experts lora".split()
    ),
    ExpertLayout: frozenset("count sublayers blocks own_norm".split()),
    LowRankLayout: frozenset("count rank alpha targets".split()),
}
# Positions that other libraries support: the first token and the last one.
_NAMED_POSITIONS = (0, -1)


def settings_beyond(config: PretrainedConfig, known: Known) -> dict[str, Any]:
    """Return the settings of a model, by name, that are neither known nor at their default."""
    beyond: dict[str, Any] = {}
    for section in (config, config.encoder, config.encoder.experts, config.encoder.lora):
        if section is None or type(section) not in known:
            continue
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            default = field.get_default(call_default_factory=True)
            if name not in known[type(section)] and value != default:
                beyond[name] = value
    return beyond


def not_plain(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings of a model that no plain encoder can express."""
    beyond = settings_beyond(config, _PLAIN)
    encoder = config.encoder
    if encoder.pooling == "position" and encoder.pooling_position not in _NAMED_POSITIONS:
        beyond["pooling_position"] = encoder.pooling_position
    return beyond


def named_pooling(encoder: EncoderConfig) -> Literal["mean", "first", "last"]:
    """Return which states of a plain encoder make the embedding."""
    if encoder.pooling == "mean":
        return "mean"
    last = encoder.pooling == "position" and encoder.pooling_position == -1
    return "last" if last else "first"


def fold(
    pretrained: Pretrained, task: str | None, side: Role | None = None
) -> tuple[PretrainedConfig, dict[str, Tensor]]:
    """Return config and weights of a vanilla encoder that serves one route.

    With experts, embeddings stay bit-identical. Low-rank updates are added to their linear layers
    (W + scale * B A), which rounds.

    Parameters
    ----------
    pretrained : Pretrained
        A model with or without experts or low-rank updates.
    task : str, optional
        The task to keep, with all tasks that share its route. Optional only for a model that
        treats all tasks alike, which keeps all.
    side : {"query", "candidate"}, optional
        Required if, and only if, the model distinguishes the sides of a task.

    Raises
    ------
    ConfigError
        If task or side are required but missing, or meaningless.
    UnknownNameError
        If the model does not know the task.
    CheckpointError
        If the model cannot be folded.
    """
    config = pretrained.config
    if beyond := not_plain(config):
        raise CheckpointError(
            f"a model with {', '.join(sorted(beyond))} cannot be folded into a plain encoder",
            value=beyond,
            fix="export it to sentence-transformers, where our code runs it, or as pretrained",
        )
    route = _route(pretrained, task, side)
    weights = pretrained.model.state_dict()
    tasks = config.tasks if task is None else [pretrained.tasks[task]]
    if config.encoder.is_routed:
        weights = _of_route(weights, config.encoder, route)
        tasks = [t for t in config.tasks if pretrained.route(t.name, side or "query") == route]
    encoder = config.encoder.model_copy(update={"experts": None, "lora": None})
    changes = {"encoder": encoder, "routing": "task", "tasks": tasks}
    folded = config.model_copy(update=changes, deep=True)
    expected = empty_model(folded.encoder).state_dict().keys()
    if weights.keys() != expected:
        raise CheckpointError(
            "the model has weights that a plain encoder does not",
            value=sorted(weights.keys() ^ expected)[:4],
            fix="export it as pretrained, which keeps all weights",
        )
    return folded, {key: value.detach().float().cpu() for key, value in weights.items()}


def plain_model(
    config: PretrainedConfig, weights: dict[str, Tensor], pad_id: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return ``config.json`` and weights of a folded model for ``transformers``.

    The pooler that all families but ModernBERT have there is zero: embeddings do not use it, but
    without it loaders would draw a random one and warn.

    Raises
    ------
    CheckpointError
        If the padding id does not fit the positions of a RoBERTa.
    """
    encoder = config.encoder
    if encoder.position_offset and pad_id != encoder.position_offset - 1:
        raise CheckpointError(
            f"family {encoder.family} counts positions from its padding id, which differs from "
            "the tokenizer's",
            value=pad_id,
            fix=f"give the tokenizer's padding token the id {encoder.position_offset - 1}",
        )
    hf_weights = export_weights(weights, encoder)
    if encoder.modern is None:
        hf_weights["pooler.dense.weight"] = torch.zeros(encoder.hidden_size, encoder.hidden_size)
        hf_weights["pooler.dense.bias"] = torch.zeros(encoder.hidden_size)
    ours = config.model_dump(mode="json", exclude={"encoder"})
    ours |= {"pooling": encoder.pooling, "pooling_position": encoder.pooling_position}
    added = {"pad_token_id": pad_id, "dtype": "float32", FOLDED_KEY: ours}
    return export_config(encoder) | added, hf_weights


def _route(pretrained: Pretrained, task: str | None, side: Role | None) -> int:
    routed = pretrained.config.encoder.is_routed
    by_side = routed and tells_sides(pretrained.config.routing)
    if task is None and routed:
        raise ConfigError(
            "this model has a route per task, and only one can be folded",
            fix=f"choose one with --task: {', '.join(pretrained.tasks.names)}",
        )
    if by_side and side is None:
        raise ConfigError(
            "this model distinguishes queries from candidates, and only one side can be folded",
            fix="add --side query or --side candidate",
        )
    if side is not None and not by_side:
        raise ConfigError(
            "this model treats queries and candidates alike", value=side, fix="leave --side out"
        )
    return 0 if task is None else pretrained.route(task, side or "query")


def _of_route(weights: dict[str, Tensor], encoder: EncoderConfig, route: int) -> dict[str, Tensor]:
    """Keep one route's entry of every bank with several, under a vanilla encoder's names."""
    if encoder.lora is not None:
        weights = _with_updates(weights, encoder.lora, route)
    plain = {}
    for key, value in weights.items():
        if match := in_bank(key, weights):
            if int(match[2]) != route:
                continue
            key = f"{match[1]}0{match[3]}"
        # Norms may have a bank of their own or be shared by experts; a plain block has one.
        key = key.replace(".attention.norm.experts.0.", ".attention.norm.")
        key = key.replace(".feed_forward_norm.", ".feed_forward.experts.0.norm.")
        plain[key] = value
    return plain


def _with_updates(
    weights: dict[str, Tensor], layout: LowRankLayout, route: int
) -> dict[str, Tensor]:
    """Add a route's low-rank updates to their linear layers, in float64."""
    merged = {key: value for key, value in weights.items() if ".lora." not in key}
    for key, up in weights.items():
        match = _UPDATE.match(key)
        if match is None or int(match[3]) != route:
            continue
        down = weights[key.replace(".up.", ".down.")]
        update = layout.alpha / layout.rank * (up.double() @ down.double())
        linear, part = _UPDATED[match[2]]
        name = f"{match[1]}.{linear}.weight"
        changed = merged[name].double().clone()
        changed[part * len(update) : (part + 1) * len(update)] += update
        merged[name] = changed
    return merged
