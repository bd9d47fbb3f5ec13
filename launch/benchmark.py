"""Sizes and speeds: ``python launch/benchmark.py --help`` lists what can be measured."""

import sys
from pathlib import Path
from runpy import run_module

if __name__ == "__main__":
    # Only the package is installed; the benchmarks are next to it.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    run_module("benchmarks.app", run_name="__main__")
