"""Evaluate a suite: ``python launch/evaluate.py --suite first --data DIR --out DIR ...``."""

from scimult.cli.main import launch

if __name__ == "__main__":
    launch("evaluate")
