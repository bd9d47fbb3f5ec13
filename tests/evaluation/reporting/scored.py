"""Results of two systems on small sets of every protocol, for tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.comparison import Difference
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.systems import BM25System, DenseSystem
from tests.benchmark_sets import EVERY_KIND, WordEncoder, made_suite


def write_results(root: Path, *, save_runs: bool = True) -> tuple[Path, Path]:
    """Score BM25, then the encoder ``words``; return the folders of the results and the data."""
    data = root / "data"
    made = [write(data) for write in EVERY_KIND]
    return score_all(root, made, save_runs=save_runs), data


def score_all(root: Path, made: Sequence[Benchmark], *, save_runs: bool = True) -> Path:
    """Score BM25, then ``words``, on benchmarks whose data is below ``root``."""
    data, out = root / "data", root / "results"
    suite = made_suite(*made, name="tiny", description="Tests")
    sets = load_sets(suite, data)
    for system in (BM25System(), DenseSystem(WordEncoder())):
        evaluate(system, suite, sets, out, save_runs=save_runs)
    return out


def row_of(system: str, difference: float, **changes: object) -> Difference:
    values: dict[str, object] = {
        "task": "all",
        "name": "average",
        "metric": "main",
        "system": system,
        "queries": 50,
        "baseline_score": 0.5,
        "score": 0.5 + difference,
        "difference": difference,
        "relative_change": None,
        "low": difference - 0.01,
        "high": difference + 0.01,
    }
    return Difference.model_validate(values | changes)
