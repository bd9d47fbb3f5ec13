"""Evaluate systems on a suite: read each data set once, rank, score, write results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.data.lines import Rejects
from scimult.evaluation.datasets import Dataset, read_dataset
from scimult.evaluation.intervals import with_intervals
from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.protocols import PROTOCOLS, Outcome
from scimult.evaluation.results import (
    Result,
    SetFacts,
    SetResult,
    averages,
    folder_of,
    provenance,
    save_result,
)
from scimult.evaluation.suites import Benchmark, Suite
from scimult.evaluation.systems import System
from scimult.files import sha256
from scimult.retrieval.runs import write_run


@dataclass(frozen=True)
class LoadedSet:
    """A benchmark, its data, and the facts that a result states about them."""

    benchmark: Benchmark
    dataset: Dataset
    facts: SetFacts


def load_sets(
    suite: Suite, root: Path, names: Sequence[str] = (), *, skip_bad: bool = False
) -> dict[str, LoadedSet]:
    """Read the named benchmarks of a suite (all for no names) before anything is encoded.

    Raises
    ------
    DataError
        If data is missing or bad; see :mod:`scimult.evaluation.datasets`.
    UnknownNameError
        If the suite has no benchmark of that name.
    """
    loaded = {}
    for name, benchmark in suite.select(names).items():
        rejects = Rejects(skip_bad)
        dataset = read_dataset(name, benchmark, root, suite.how_to_get, rejects)
        facts = SetFacts(
            task=benchmark.task,
            protocol=benchmark.protocol,
            mode=benchmark.mode,
            main_metric=benchmark.main_metric,
            counts=dataset.counts,
            left_out=dict(rejects.counts),
            files={os.path.relpath(path, root): sha256(path) for path in dataset.files},
        )
        loaded[name] = LoadedSet(benchmark, dataset, facts)
    return loaded


def evaluate(
    system: System,
    suite: Suite,
    sets: Mapping[str, LoadedSet],
    out: Path,
    *,
    save_runs: bool = False,
    confidence: float | None = None,
    on_set: Callable[[str, SetResult], None] = lambda name, result: None,
) -> Result:
    """Score one system on loaded sets and write its files below ``out``.

    Parameters
    ----------
    system, suite, sets
        What is scored, and on what.
    out : Path
        Gets ``<system>/result.json`` and ``<system>/per_query/<set>.tsv.gz``.
    save_runs : bool
        Also write the ranked lists as TREC runs.
    confidence : float, optional
        Also keep an interval of every score with this confidence.
    on_set : callable
        Is told the result of each set as soon as it is known.
    """
    scored: dict[str, SetResult] = {}
    for name, loaded in sets.items():
        start = time.perf_counter()
        ranker = system.ranker(loaded.dataset)
        outcome = PROTOCOLS[loaded.benchmark.protocol](loaded.benchmark, loaded.dataset, ranker)
        seconds = round(time.perf_counter() - start, 3)
        scored[name] = SetResult(
            **loaded.facts.model_dump(),
            scores=outcome.scores,
            seconds=seconds,
            cost=system.costs.get(name, {}),
        )
        write_per_query(out, system.name, name, loaded.dataset.query_ids, outcome.per_query)
        if save_runs:
            _write_runs(folder_of(out, system.name), name, loaded.dataset, outcome)
        on_set(name, scored[name])
    result = Result(
        system=system.name,
        settings=system.describe(),
        suite=suite.model_dump(mode="json"),
        sets=scored,
        averages=averages(scored),
        provenance=provenance(),
    )
    if confidence is not None:
        result = with_intervals(result, out, confidence)
    save_result(result, out)
    return result


def _write_runs(folder: Path, name: str, dataset: Dataset, outcome: Outcome) -> None:
    for kind, ranking in outcome.rankings.items():
        path = folder / "runs" / f"{name}{kind}.run"
        write_run(path, ranking, dataset.query_ids, dataset.candidate_ids, folder.name)
