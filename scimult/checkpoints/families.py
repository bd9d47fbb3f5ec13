"""The architectures that base checkpoints may have, and their names at Hugging Face.

One entry per ``model_type``: reading its ``config.json``, renaming its weights to ours and
back. Adding an architecture is adding an entry to ``FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from scimult.checkpoints import bert_keys, modernbert_keys
from scimult.checkpoints.hf_options import HFConfig
from scimult.errors import CheckpointError, suggest
from scimult.models.config import EncoderConfig, FamilyName, Pooling

if TYPE_CHECKING:
    from torch import Tensor

Weights: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class Family:
    """How one Hugging Face architecture is read and written.

    Attributes
    ----------
    encoder_config : callable
        ``(content of config.json, pooling, its path) -> EncoderConfig``, without experts;
        a ``CheckpointError`` names an option that our blocks do not have, a ``KeyError``
        a size that is missing.
    from_hf : callable
        ``(weights, encoder config) -> our weights``. Heads are left out; unknown keys keep
        their name, so that loading names them. Gradients by name can be renamed, too.
    to_hf : callable
        ``(weights of an encoder without experts, its config) -> weights`` that
        ``transformers.AutoModel`` loads; it has no pooler. Use `export_weights`.
    hf_config : callable
        ``encoder config -> config.json`` that ``transformers.AutoModel`` understands.
        ``encoder_config`` of it gives the encoder config back, but for its experts.
    """

    encoder_config: Callable[[HFConfig, Pooling, object], EncoderConfig]
    from_hf: Callable[[Weights, EncoderConfig], Weights]
    to_hf: Callable[[Weights, EncoderConfig], Weights]
    hf_config: Callable[[EncoderConfig], HFConfig]


def _roberta(name: FamilyName) -> Family:
    """Return the entry of RoBERTa or XLM-R: BERT's weights below another prefix."""
    return Family(
        encoder_config=partial(bert_keys.roberta_config, family=name),
        from_hf=lambda weights, config: bert_keys.from_bert(
            weights, config.num_blocks, bert_keys.ROBERTA_PREFIX
        ),
        to_hf=lambda weights, config: bert_keys.to_bert(weights, config.num_blocks),
        hf_config=bert_keys.to_roberta_config,
    )


FAMILIES: dict[str, Family] = {
    "bert": Family(
        encoder_config=bert_keys.bert_config,
        from_hf=lambda weights, config: bert_keys.from_bert(weights, config.num_blocks),
        to_hf=lambda weights, config: bert_keys.to_bert(weights, config.num_blocks),
        hf_config=bert_keys.to_bert_config,
    ),
    "roberta": _roberta("roberta"),
    "xlm-roberta": _roberta("xlm-roberta"),
    "modernbert": Family(
        encoder_config=modernbert_keys.modernbert_config,
        from_hf=modernbert_keys.from_modernbert,
        to_hf=modernbert_keys.to_modernbert,
        hf_config=modernbert_keys.to_modernbert_config,
    ),
}


def family_of(hf_config: HFConfig, path: object = None) -> Family:
    """Return the family that the ``model_type`` of a ``config.json`` names.

    Raises
    ------
    CheckpointError
        If we have no such blocks.
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
        If the encoder has experts; plain Transformers have no place for them.
    """
    several = sorted(name for name in weights if ".experts.1." in name)
    if config.experts is not None or several:
        raise CheckpointError(
            "an encoder with experts has no plain Transformer form",
            value=several[:1] or None,
            fix="choose one task's expert and export that",
        )
    return FAMILIES[config.family].to_hf(weights, config)


def export_config(config: EncoderConfig) -> HFConfig:
    """Return the ``config.json`` that goes with `export_weights`."""
    return FAMILIES[config.family].hf_config(config)
