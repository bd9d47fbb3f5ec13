"""Evaluate a suite: ``python launch/evaluate.py --suite first --data DIR --out DIR ...``."""

import sys

from scimult.cli.main import app

if __name__ == "__main__":
    app(["evaluate", *sys.argv[1:]])
