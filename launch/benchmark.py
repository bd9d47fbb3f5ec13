"""Sizes and speeds side by side: ``python launch/benchmark.py variants``."""

import sys

from scimult.cli.main import app

if __name__ == "__main__":
    app(["benchmark", *sys.argv[1:]])
