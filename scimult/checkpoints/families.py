"""The supported architectures of base checkpoints, by Hugging Face's ``model_type``.

Each entry of ``FAMILIES`` reads and writes a ``config.json`` and renames weights to ours and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from scimult.checkpoints import bert_keys, modernbert_keys
from scimult.checkpoints.hf_options import HFConfig
from scimult.errors import CheckpointError, suggest
from scimult.models.config import EncoderConfig, Pooling

if TYPE_CHECKING:
    from torch import Tensor

Weights: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class Family:
    """How one Hugging Face architecture is read and written.

    Attributes
    ----------
    encoder_config : callable
        ``(content of config.json, pooling, its path) -> EncoderConfig``, without experts. Raises
        a ``CheckpointError`` for an unsupported option, a ``KeyError`` for a missing size.
    from_hf : callable
        ``(weights, encoder config) -> our weights``, without heads; unknown keys stay, so that
        loading reports them. Also renames gradients.
    to_hf : callable
        ``(weights of an encoder without experts, its config) -> weights`` for
        ``transformers.AutoModel``, without a pooler. Use `export_weights`.
    hf_config : callable
        ``encoder config -> config.json`` for ``transformers.AutoModel``, which
        ``encoder_config`` inverts, except for experts.
    """

    encoder_config: Callable[[HFConfig, Pooling, object], EncoderConfig]
    from_hf: Callable[[Weights, EncoderConfig], Weights]
    to_hf: Callable[[Weights, EncoderConfig], Weights]
    hf_config: Callable[[EncoderConfig], HFConfig]


_BERT = Family(
    bert_keys.bert_config, bert_keys.from_bert, bert_keys.to_bert, bert_keys.to_bert_config
)
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "modernbert": Family(
        modernbert_keys.modernbert_config,
        modernbert_keys.from_modernbert,
        modernbert_keys.to_modernbert,
        modernbert_keys.to_modernbert_config,
    ),
}


def family_of(hf_config: HFConfig, path: object = None) -> Family:
    """Return the family of a ``config.json``'s ``model_type``.

    Raises
    ------
    CheckpointError
        If it is not supported.
    """
    name = str(hf_config.get("model_type"))
    if name not in FAMILIES:
        raise CheckpointError(
            "model_type of this checkpoint is not supported",
            path=path,  # type: ignore[arg-type]
            value=name,
            fix=f"use a checkpoint of one of {', '.join(FAMILIES)}{suggest(name, FAMILIES)}",
        )
    return FAMILIES[name]


def export_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """Rename the weights of an encoder without experts to those of ``transformers``.

    Raises
    ------
    CheckpointError
        If the encoder has experts, which plain Transformers cannot hold.
    """
    several = sorted(name for name in weights if ".experts.1." in name)
    if config.experts is not None or several:
        raise CheckpointError(
            "an encoder with experts has no plain Transformer form",
            value=several[:1] or None,
            fix="export one task's expert",
        )
    return FAMILIES[config.family].to_hf(weights, config)


def export_config(config: EncoderConfig) -> HFConfig:
    """Return the ``config.json`` for `export_weights`."""
    return FAMILIES[config.family].hf_config(config)
