"""Sizes and speeds: ``python launch/benchmark.py variants``, ``train``, ``data`` or ``search``."""

from scimult.cli.main import launch

if __name__ == "__main__":
    launch("benchmark")
