"""Weights on disk: our folders, Hugging Face folders, warm start."""

from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.pretrained import (
    Pretrained,
    load_pretrained,
    read_config,
    save_pretrained,
)
from scimult.checkpoints.warm_start import warm_start

__all__ = [
    "Pretrained",
    "PretrainedConfig",
    "load_pretrained",
    "read_config",
    "save_pretrained",
    "warm_start",
]
