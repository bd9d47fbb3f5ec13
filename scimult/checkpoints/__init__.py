"""Weights on disk: our folders, HF BERT folders, warm start, resume state."""

from scimult.checkpoints.pretrained import (
    Pretrained,
    PretrainedConfig,
    load_pretrained,
    save_pretrained,
)
from scimult.checkpoints.warm_start import warm_start

__all__ = ["Pretrained", "PretrainedConfig", "load_pretrained", "save_pretrained", "warm_start"]
