"""Encode on many GPUs: ``torchrun --nproc-per-node 8 launch/encode.py PAPERS --model M ...``."""

from scimult.cli.main import launch

if __name__ == "__main__":
    launch("encode")
