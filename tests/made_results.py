"""Results of systems that were never run, for tests of tables and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scimult.evaluation.results import Result, SetResult, save_result


def set_result(metric: str, scores: Mapping[str, float], **changes: Any) -> SetResult:
    """Return the scores of a search set, the main metric among them, with some facts changed."""
    facts: dict[str, Any] = {"task": "search", "protocol": "search", "mode": "default"}
    facts |= {"counts": {}, "left_out": {}, "files": {}, "seconds": 1.0}
    return SetResult(**{**facts, "main_metric": metric, "scores": dict(scores), **changes})


def write_result(
    out: Path,
    system: str,
    sets: dict[str, SetResult],
    benchmarks: Iterable[str] | Mapping[str, Any] = (),
    *,
    suite: str = "own",
    date: str = "",
) -> None:
    """Write a result on a suite that has these benchmarks, by default the sets."""
    described = benchmarks if isinstance(benchmarks, Mapping) else dict.fromkeys(benchmarks or sets)
    result = Result(
        system=system,
        settings={},
        suite={"name": suite, "description": "Mine", "benchmarks": dict(described)},
        sets=sets,
        averages={},
        provenance={"date": date} if date else {},
    )
    save_result(result, out)
