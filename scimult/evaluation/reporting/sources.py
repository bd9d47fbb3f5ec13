"""Inputs of the sections of one data set: per-query scores; texts and ranked lists if available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from scimult.config import validate
from scimult.errors import DataError
from scimult.evaluation.datasets import missing_files
from scimult.evaluation.harness import load_sets
from scimult.evaluation.metrics import Scores
from scimult.evaluation.per_query import PerQuery, read_per_query
from scimult.evaluation.results import Result, SetFacts, folder_of
from scimult.evaluation.suites import Suite
from scimult.evaluation.task_data import Dataset
from scimult.retrieval.runs import Ranking, read_run


@dataclass(frozen=True)
class Missing:
    """A section, or a part of one, that cannot be shown, with the reason and the fix."""

    section: str
    why: str
    fix: str


@dataclass(frozen=True)
class ScoredSet:
    """One data set and the answers by system.

    ``tables`` are per-query scores, ``dataset`` texts and judgments (None without ``--data``), all
    with queries in the same order; ``runs`` are ranked lists, where saved.
    """

    name: str
    facts: SetFacts
    tables: dict[str, PerQuery]
    dataset: Dataset | None = None
    runs: dict[str, Ranking] = field(default_factory=dict)

    @property
    def query_ids(self) -> list[str]:
        """Ids of the Q queries."""
        return next(iter(self.tables.values())).query_ids

    @property
    def has_one_label(self) -> bool:
        """Whether systems predict one label for each query."""
        return "correct" in next(iter(self.tables.values())).columns

    @property
    def has_shares(self) -> bool:
        """Whether queries have no score of their own, but a share in one of all."""
        columns = next(iter(self.tables.values())).columns
        return "gold" in columns and not self.has_one_label

    @property
    def weights_Q(self) -> Scores:
        """Weight of each query in the scores, 1 on average."""
        weights_Q1 = next(iter(self.tables.values())).weights
        return np.ones(len(self.query_ids)) if weights_Q1 is None else weights_Q1[:, 0]

    @cached_property
    def titles(self) -> dict[str, str]:
        """Titles of the candidates by id; none without texts."""
        data = self.dataset
        if data is None:
            return {}
        ids = data.candidate_ids
        return {name: text.title for name, text in zip(ids, data.candidates, strict=True)}

    @property
    def column(self) -> str:
        """The tables' column with one score per query."""
        return "correct" if self.has_one_label else self.facts.main_metric


def read_scored_set(
    out: Path, results: Sequence[Result], name: str, data: Sequence[Path]
) -> ScoredSet:
    """Read the scores of systems that have the set, and its texts and lists if available.

    Raises
    ------
    ConfigError, DataError
        If a file is damaged, or the data differs from what was scored.
    """
    dataset = _dataset(out, results[-1], name, data)
    tables = {result.system: read_per_query(out, result.system, name) for result in results}
    order = dataset.query_ids if dataset else next(iter(tables.values())).query_ids
    tables = {system: table.in_order_of(order) for system, table in tables.items()}
    runs = {}
    for system in tables:
        path = folder_of(out, system) / "runs" / f"{name}.run"
        if dataset and path.exists():
            runs[system] = read_run(path, dataset.query_ids, dataset.candidate_ids)
    return ScoredSet(name, results[-1].facts[name], tables, dataset, runs)


def _dataset(out: Path, result: Result, name: str, data: Sequence[Path]) -> Dataset | None:
    """Read the set as described in the result; None if no folder has its files."""
    path, facts = folder_of(out, result.system) / "result.json", result.facts[name]
    suite = validate(Suite, result.suite, path)
    if name not in suite.benchmarks:
        fix = "delete it and evaluate the system again"
        raise DataError("its suite lacks a set that it scores", path=path, value=name, fix=fix)
    for folder in data:
        if missing_files(suite.benchmarks[name], folder):
            continue
        loaded = load_sets(suite, folder, [name], skip_bad=bool(facts.left_out))[name]
        if loaded.facts.files != facts.files:
            raise DataError(
                f"the files of {name} differ from those that were scored",
                path=folder,
                fix="pass the data that scimult evaluate read, or evaluate again",
            )
        return loaded.dataset if isinstance(loaded.dataset, Dataset) else None
    return None
