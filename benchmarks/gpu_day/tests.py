"""The project's own tests, on this machine."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

from benchmarks.gpu_day.day import Day

_MOST_NAMES = 20
# By file: collecting a folder would import packages that the machine may lack.
_ON_GPU = ("tests/models/test_gpu.py", "tests/retrieval/test_search_on_gpu.py")


def gpu(day: Day, step: str) -> None:
    """Run the tests that need a GPU."""
    _pytest(day, step, ["-m", "gpu", *_ON_GPU])


def core(day: Day, step: str) -> None:
    """Run the tests of models, losses, inference and retrieval."""
    full = ["tests/models", "tests/losses", "tests/inference", "tests/retrieval"]
    folders = day.size(full, ["tests/losses"])
    _pytest(day, step, ["-m", "not slow and not ranks", *folders])


def _pytest(day: Day, step: str, arguments: list[str]) -> None:
    results = (day.work / f"{step}.xml").resolve()
    results.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
    rc = subprocess.run([sys.executable, "-m", "pytest", *options, *arguments]).returncode
    if not results.exists():
        raise SystemExit(f"pytest ended with {rc} without results")
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed = [case for case in cases if {child.tag for child in case} & {"failure", "error"}]
    skipped = [case for case in cases if any(child.tag == "skipped" for child in case)]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    day.note(
        step,
        passed=len(cases) - len(failed) - len(skipped),
        failed=len(failed),
        skipped=len(skipped),
        names=names[:_MOST_NAMES],
    )
    raise SystemExit(rc)
