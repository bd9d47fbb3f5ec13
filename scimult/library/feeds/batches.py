"""Papers with their vectors, a batch at a time.

Shape legend: N papers, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from scimult.errors import one_of
from scimult.library.filters import Where
from scimult.library.state import State
from scimult.retrieval.shards import Space
from scimult.types import FloatArray

ROWS = 5000
"""Papers of a batch, and of a file."""


@dataclass(frozen=True)
class Feed:
    """What is fed: the papers of a filter with the vectors of a task.

    Raises
    ------
    UnknownNameError
        If the library has no vectors for the task.
    """

    state: State
    task: str
    where: Where | None = None

    def __post_init__(self) -> None:
        one_of("task of this library", self.task, self.state.manifest.sides)

    @property
    def space(self) -> Space:
        """What made the vectors."""
        return self.state.shards(self.task).space

    @property
    def types(self) -> dict[str, str]:
        """Types of the columns besides id, title and abstract."""
        return dict(self.state.manifest.columns)

    def batches(self) -> Iterator[tuple[pa.Table, FloatArray]]:
        """Yield a table of id, title, abstract and columns, and vectors of shape ``(N, D)``."""
        rows = self.state.chosen(where=self.where)
        names = ["id", "title", "abstract", *self.types]
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            yield self.state.papers.table(part, names), self.state.shards(self.task).rows(part)

    def records(self) -> Iterator[list[dict[str, Any]]]:
        """Yield papers as mappings, without what is absent, with their ``vector``."""
        for table, vectors_ND in self.batches():
            yield [
                {**{name: value for name, value in row.items() if value is not None}, "vector": x}
                for row, x in zip(table.to_pylist(), vectors_ND.tolist(), strict=True)
            ]
