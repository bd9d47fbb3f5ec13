"""RoBERTa and XLM-R: BERT's blocks, with positions that begin behind the padding id.

Their table of positions is indexed by ``pad_token_id + 1 + place``: of 514 rows, 512 are
used (Liu et al., 2019; Conneau et al., 2020).
"""

from __future__ import annotations

from scimult.checkpoints.bert_keys import bert_like_config, to_bert_config
from scimult.checkpoints.hf_options import HFConfig, integer
from scimult.models.config import EncoderConfig, FamilyName, Pooling

PREFIX = "roberta."
_ARCHITECTURES: dict[FamilyName, str] = {
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}


def roberta_config(
    hf_config: HFConfig, pooling: Pooling, path: object, family: FamilyName = "roberta"
) -> EncoderConfig:
    """Translate the ``config.json`` of a RoBERTa or XLM-R checkpoint.

    Raises
    ------
    CheckpointError
        If it uses an option that our blocks do not have.
    """
    offset = integer({"pad_token_id": 1, **hf_config}, "pad_token_id", path) + 1
    return bert_like_config(hf_config, pooling, path, family=family, position_offset=offset)


def to_roberta_config(config: EncoderConfig) -> HFConfig:
    """Return the ``config.json`` of the RoBERTa or XLM-R that equals our encoder."""
    return {
        **to_bert_config(config),
        "model_type": config.family,
        "architectures": [_ARCHITECTURES[config.family]],
        "pad_token_id": config.position_offset - 1,
    }
