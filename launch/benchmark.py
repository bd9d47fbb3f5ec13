"""Sizes and speeds: ``python launch/benchmark.py variants``, ``train``, ``data`` or ``search``."""

import sys

from scimult.cli.main import app

if __name__ == "__main__":
    app(["benchmark", *sys.argv[1:]])
