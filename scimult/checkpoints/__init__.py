"""Models on disk: our folders, Hugging Face folders, warm start, merging, exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.on_demand import on_demand

if TYPE_CHECKING:
    from scimult.checkpoints.config import PretrainedConfig
    from scimult.checkpoints.pretrained import Pretrained, load_pretrained, save_pretrained
    from scimult.checkpoints.reading import read_config

__all__ = [
    "Pretrained",
    "PretrainedConfig",
    "load_pretrained",
    "read_config",
    "save_pretrained",
]
__getattr__ = on_demand(
    __name__,
    {
        "Pretrained": "scimult.checkpoints.pretrained",
        "PretrainedConfig": "scimult.checkpoints.config",
        "load_pretrained": "scimult.checkpoints.pretrained",
        "read_config": "scimult.checkpoints.reading",
        "save_pretrained": "scimult.checkpoints.pretrained",
    },
)
