"""Other splits of benchmarks, on which a fused system chooses its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scimult.data.lines import Rejects
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.systems import Ranker
from scimult.evaluation.task_data import Dataset
from scimult.retrieval.runs import Ranking


@dataclass(frozen=True)
class DevSet:
    """Queries that are not scored, and whether a query paper is left out of its own list."""

    dataset: Dataset
    leaves_out: bool

    def rank(self, ranker: Ranker, depth: int) -> Ranking:
        """Rank as the benchmark's protocol does."""
        if self.dataset.lists is not None:
            return ranker.rank_listed(self.dataset.lists)
        return ranker.search(depth, self.dataset.own_rows if self.leaves_out else None)


def read_dev_sets(
    benchmarks: Mapping[str, Benchmark], root: Path, split: str, *, skip_bad: bool = False
) -> dict[str, DevSet]:
    """Read a split of every benchmark that ranks texts, under the name ``SET.SPLIT``.

    Raises
    ------
    DataError
        If a benchmark has no files for this split, or they are bad.
    """
    found = {}
    for name, benchmark in benchmarks.items():
        other = benchmark.model_copy(update={"split": split, "expected": None})
        how = f"write the judgments of split {split!r}, or fuse without dev="
        dataset = read_dataset(f"{name}.{split}", other, root, how, Rejects(skip_bad))
        if isinstance(dataset, Dataset):
            linked = benchmark.protocol == "link_retrieval" and benchmark.mode != "paper"
            found[name] = DevSet(dataset, linked or benchmark.mode == "beir")
    return found
