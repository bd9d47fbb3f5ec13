"""Folding: the experts of one task as a plain BERT, which needs none of our code."""

from __future__ import annotations

import re
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from scimult.checkpoints.bert_keys import to_bert
from scimult.checkpoints.pretrained import FOLDED_KEY, Pretrained, PretrainedConfig
from scimult.errors import CheckpointError, ConfigError
from scimult.models import Encoder, EncoderConfig, ExpertLayout

_EXPERT = re.compile(r"\.experts\.(\d+)\.")

# What a plain encoder with experts is made of. A setting that is not listed here, and is not
# at its default, is something that the exported forms cannot express: it is refused by name.
_PLAIN: dict[type[BaseModel], frozenset[str]] = {
    PretrainedConfig: frozenset(
        "format version encoder tasks similarity max_length provenance".split()
    ),
    EncoderConfig: frozenset(
        "vocab_size hidden_size num_blocks num_heads intermediate_size max_positions token_types "
        "norm_eps dropout attention_dropout initializer_range pooling experts".split()
    ),
    ExpertLayout: frozenset("count sublayers blocks".split()),
}
_SUBLAYERS = frozenset({"attention", "feed_forward"})


def assert_plain(config: PretrainedConfig, written: str = "folded into a plain BERT") -> None:
    """Refuse a model with anything beyond experts of attention and feed-forward.

    Parameters
    ----------
    config : PretrainedConfig
        The model's.
    written : str
        What is about to happen, for the message.

    Raises
    ------
    CheckpointError
        Naming the settings that cannot be expressed.
    """
    sections = [
        config,
        config.encoder,
        *([config.encoder.experts] if config.encoder.experts else []),
    ]
    beyond: dict[str, Any] = {}
    for section in sections:
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            default = field.get_default(call_default_factory=True)
            if name not in _PLAIN[type(section)] and value != default:
                beyond[name] = value
    if config.encoder.experts and set(config.encoder.experts.sublayers) - _SUBLAYERS:
        beyond["experts.sublayers"] = config.encoder.experts.sublayers
    if beyond:
        raise CheckpointError(
            f"a model with {', '.join(sorted(beyond))} cannot be {written}",
            value=beyond,
            fix="export it as pretrained, which keeps everything",
        )


def fold(pretrained: Pretrained, task: str | None) -> tuple[PretrainedConfig, dict[str, Tensor]]:
    """Return config and weights of a vanilla encoder that serves one task.

    Parameters
    ----------
    pretrained : Pretrained
        A model with or without experts.
    task : str, optional
        The task whose experts are kept. Only a model without experts does without: it
        serves all its tasks.

    Raises
    ------
    ConfigError
        If a model with experts is folded without a task.
    UnknownNameError
        If the model does not know the task.
    CheckpointError
        If the model cannot be folded.
    """
    config = pretrained.config
    assert_plain(config)
    if task is None and config.encoder.experts is not None:
        raise ConfigError(
            "a model with experts is folded for one task",
            fix=f"name it with --task: {', '.join(pretrained.tasks.names)}",
        )
    weights = pretrained.model.state_dict()
    if task is not None:
        weights = _one_expert(weights, pretrained.expert(task))
    folded = config.model_copy(deep=True)
    folded.encoder.experts = None
    if task is not None:
        folded.tasks = [pretrained.tasks[task]]
    with torch.device("meta"):
        expected = Encoder(folded.encoder).state_dict().keys()
    if weights.keys() != expected:
        raise CheckpointError(
            "the model has weights that a plain BERT does not",
            value=sorted(weights.keys() ^ expected)[:4],
            fix="export it as pretrained, which keeps everything",
        )
    return folded, {key: value.detach().float().cpu() for key, value in weights.items()}


def plain_model(
    config: PretrainedConfig, weights: dict[str, Tensor], pad_id: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return ``config.json`` and weights of a folded model for ``transformers``.

    This is the one place that chooses the Hugging Face architecture. The pooler that
    ``BertModel`` has is written as zeros: embeddings do not use it, and without it loaders
    would draw a random one and warn.
    """
    encoder = config.encoder
    width = encoder.hidden_size
    theirs = to_bert(weights, encoder.num_blocks)
    theirs["pooler.dense.weight"] = torch.zeros(width, width)
    theirs["pooler.dense.bias"] = torch.zeros(width)
    if not encoder.token_types:
        theirs["embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    hf_config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": encoder.vocab_size,
        "hidden_size": width,
        "num_hidden_layers": encoder.num_blocks,
        "num_attention_heads": encoder.num_heads,
        "intermediate_size": encoder.intermediate_size,
        "max_position_embeddings": encoder.max_positions,
        "type_vocab_size": encoder.token_types or 1,
        "layer_norm_eps": encoder.norm_eps,
        "hidden_act": "gelu",
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "initializer_range": encoder.initializer_range,
        "position_embedding_type": "absolute",
        "pad_token_id": pad_id,
        "dtype": "float32",
    }
    ours = config.model_dump(mode="json", exclude={"encoder"})
    return hf_config | {FOLDED_KEY: ours | {"pooling": encoder.pooling}}, theirs


def _one_expert(weights: dict[str, Tensor], expert: int) -> dict[str, Tensor]:
    """Keep the given expert of every bank with several, and the only one of the others."""
    banks = {
        key[: found.start()]
        for key in weights
        if (found := _EXPERT.search(key)) and found[1] != "0"
    }
    kept = {}
    for key, value in weights.items():
        found = _EXPERT.search(key)
        if found is None or key[: found.start()] not in banks:
            kept[key] = value
        elif int(found[1]) == expert:
            kept[_EXPERT.sub(".experts.0.", key, count=1)] = value
    return kept
