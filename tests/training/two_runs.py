"""Started by ``test_launchers.py`` on two ranks: groups in a loop, then two runs in sequence."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from scimult.config import load_config
from scimult.training.config import PretrainConfig
from scimult.training.engine import process_group
from scimult.training.run import pretrain

GROUPS = 12

if __name__ == "__main__":
    configs = [load_config(PretrainConfig, Path(path), []) for path in sys.argv[1:]]
    for _ in range(GROUPS):
        with process_group(timeout_seconds=20):
            ones = torch.ones(1)
            dist.all_reduce(ones)
            assert int(ones) == 2
    for config in configs:
        pretrain(config)
