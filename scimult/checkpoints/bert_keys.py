"""Convert configs and weights of a Hugging Face BERT, RoBERTa or XLM-R to and from ours.

Our encoder keeps query, key and value of a block in one linear layer (``qkv``), and every
sub-layer inside a bank of experts; a plain BERT fills expert 0 of each bank.

RoBERTa and XLM-R have BERT's blocks, but their positions start after the padding id: the position
table is indexed by ``pad_token_id + 1 + position``, so that 512 of 514 rows are used (Liu et al.,
2019; Conneau et al., 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.checkpoints.hf_options import (
    HF_ACTIVATIONS,
    SIZES,
    HFConfig,
    activation,
    encoder_only,
    integer,
    require,
)
from scimult.models.config import EncoderConfig, FamilyName, Pooling

if TYPE_CHECKING:
    from torch import Tensor

_TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
_EMBEDDINGS = {
    "embeddings.words.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_types.weight": _TOKEN_TYPES,
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
# Weights of checkpoints that embeddings do not use.
_UNUSED_PREFIXES = ("pooler.", "cls.", "embeddings.position_ids")
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_ARCHITECTURES: dict[FamilyName, str] = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}


def bert_config(hf_config: HFConfig, pooling: Pooling, path: object) -> EncoderConfig:
    """Translate the ``config.json`` of a BERT, RoBERTa or XLM-R checkpoint.

    Raises
    ------
    CheckpointError
        If it uses an option that our blocks do not support.
    """
    require(hf_config, _REQUIRED, path)
    offset = 0
    if hf_config["model_type"] != "bert":
        offset = integer({"pad_token_id": 1, **hf_config}, "pad_token_id", path) + 1
    return EncoderConfig.model_validate(
        {
            "family": hf_config["model_type"],
            **{ours: hf_config[theirs] for ours, theirs in SIZES.items()},
            "max_positions": integer(hf_config, "max_position_embeddings", path) - offset,
            "position_offset": offset,
            "token_types": hf_config["type_vocab_size"],
            "activation": activation(hf_config, "hidden_act", path),
            # SciBERT's config.json predates this key; transformers' default is 1e-12.
            "norm_eps": hf_config.get("layer_norm_eps", 1e-12),
            "dropout": hf_config["hidden_dropout_prob"],
            "attention_dropout": hf_config["attention_probs_dropout_prob"],
            "initializer_range": hf_config["initializer_range"],
            "pooling": pooling,
        }
    )


def to_bert_config(config: EncoderConfig) -> HFConfig:
    """Return the ``config.json`` of the equivalent BERT, RoBERTa or XLM-R."""
    hf_config: HFConfig = {
        "model_type": config.family,
        "architectures": [_ARCHITECTURES[config.family]],
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "max_position_embeddings": config.max_positions + config.position_offset,
        "type_vocab_size": max(1, config.token_types),
        "hidden_act": HF_ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.initializer_range,
    }
    if config.position_offset:
        hf_config["pad_token_id"] = config.position_offset - 1
    return hf_config


def from_bert(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename weights to ours; unknown keys stay, so that loading reports them.

    Accepts the encoder alone or inside a model with heads, and the old names of LayerNorm
    parameters (``gamma``, ``beta``).
    """
    encoder = encoder_only(weights, "bert." if config.family == "bert" else "roberta.")
    source = {_modern_name(key): value for key, value in encoder.items()}
    source = {k: v for k, v in source.items() if not k.startswith(_UNUSED_PREFIXES)}
    ours: dict[str, Tensor] = {}
    for our_key, bert_key in _pairs(config.num_blocks):
        if bert_key in source:
            ours[our_key] = source.pop(bert_key)
    for block in range(config.num_blocks):
        for kind in ("weight", "bias"):
            names = [f"encoder.layer.{block}.attention.self.{part}.{kind}" for part in _QKV]
            ours |= take_joined(
                source, names, f"blocks.{block}.attention.qkv.experts.0.{kind}", config.hidden_size
            )
    return ours | source


def to_bert(weights: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Rename a vanilla encoder's weights to those of ``transformers`` (no pooler)."""
    bert = {theirs: weights[ours] for ours, theirs in _pairs(config.num_blocks) if ours in weights}
    for block in range(config.num_blocks):
        for kind in ("weight", "bias"):
            parts = weights[f"blocks.{block}.attention.qkv.experts.0.{kind}"].chunk(3)
            for part, tensor in zip(_QKV, parts, strict=True):
                bert[f"encoder.layer.{block}.attention.self.{part}.{kind}"] = tensor.contiguous()
    if _TOKEN_TYPES not in bert:  # ours may have none, but BertModel always adds one
        words = bert["embeddings.word_embeddings.weight"]
        bert[_TOKEN_TYPES] = words.new_zeros(1, words.shape[1])
    return bert


def _pairs(num_blocks: int) -> list[tuple[str, str]]:
    return [
        *_EMBEDDINGS.items(),
        *(
            (f"blocks.{block}.{ours}.{kind}", f"encoder.layer.{block}.{theirs}.{kind}")
            for block in range(num_blocks)
            for ours, theirs in _BLOCK.items()
            for kind in ("weight", "bias")
        ),
    ]


def _modern_name(key: str) -> str:
    return key.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def take_joined(
    source: dict[str, Any], names: Sequence[str], name: str, width: int
) -> dict[str, Any]:
    """Move query, key and value out of ``source`` into one weight of this ``name``.

    They stay, so that loading reports them, if one is missing or of another shape: joined, a
    longer and a shorter one would fit. Arrays of a model opened without torch are joined, too.
    """
    shapes = {tuple(source[each].shape) if each in source else None for each in names}
    if len(shapes) > 1 or not shapes <= {(width,), (width, width)}:
        return {}
    parts = [source.pop(each) for each in names]
    if isinstance(parts[0], np.ndarray):
        return {name: np.concatenate(parts)}
    import torch

    return {name: torch.cat(parts)}
