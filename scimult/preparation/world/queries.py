"""Search queries with shown and clicked papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.preparation.world.fields import FINE, FieldTree
from scimult.preparation.world.papers import Paper
from scimult.preparation.world.sentences import Writer
from scimult.preparation.world.settings import WorldSettings, stream
from scimult.types import IntArray

_TWO_CONCEPTS = 0.7
_MOST_CLICKS = 3


@dataclass(frozen=True, slots=True)
class Query:
    """A request for papers about all of ``concepts``: one or two concepts of fine fields.

    ``relevant`` are all papers that answer it, ``shown`` is the result list in order, and
    ``clicked`` are the opened results. All are rows of the world; the first and last are sorted.
    """

    id: str
    text: str
    concepts: tuple[int, ...]
    relevant: IntArray
    shown: IntArray
    clicked: IntArray


class Searcher:
    """Draws queries about a collection of papers, maybe the first of a world, and answers them.

    ``part`` is the prefix of the queries' ids and the name of the random stream.
    """

    def __init__(
        self,
        settings: WorldSettings,
        tree: FieldTree,
        papers: Sequence[Paper],
        writer: Writer,
        part: str,
    ) -> None:
        self._shown = settings.shown
        self._rng = stream(settings, f"{part} queries")
        self._writer, self._part = writer, part
        self._papers = papers
        self._fine = [tree.fields[concept.field].level == FINE for concept in tree.concepts]
        self._about: list[list[int]] = [[] for _ in tree.concepts]
        for row, paper in enumerate(papers):
            for concept in paper.concepts:
                self._about[concept].append(row)

    def queries(self, count: int, taken: set[tuple[int, ...]]) -> list[Query]:
        """Return up to ``count`` queries whose concepts are not in ``taken``, and add them to it.

        Fewer are returned only if the papers offer no further combinations.
        """
        queries: list[Query] = []
        for _ in range(10 * count):
            if len(queries) == count:
                break
            concepts = self._concepts(self._papers[int(self._rng.integers(len(self._papers)))])
            if concepts in taken:
                continue
            taken.add(concepts)
            queries.append(self._query(f"{self._part}-{len(queries):05d}", concepts))
        return queries

    def _concepts(self, paper: Paper) -> tuple[int, ...]:
        specific = [concept for concept in paper.concepts if self._fine[concept]]
        count = 2 if self._rng.random() < _TWO_CONCEPTS else 1
        return tuple(sorted(self._rng.choice(specific, size=count, replace=False).tolist()))

    def _query(self, name: str, concepts: tuple[int, ...]) -> Query:
        """Return a query whose result list has 1 to 3 relevant papers, and near misses."""
        relevant = np.array(sorted(set.intersection(*(set(self._about[c]) for c in concepts))))
        clicks = min(len(relevant), int(self._rng.integers(1, _MOST_CLICKS + 1)))
        clicked = self._rng.choice(relevant, size=clicks, replace=False)
        near = self._near_misses(concepts, relevant)
        missed = self._rng.choice(near, size=min(len(near), self._shown - clicks), replace=False)
        shown = self._rng.permutation(np.concatenate([clicked, missed]))
        return Query(
            name, self._writer.query(concepts), concepts, relevant, shown, np.sort(clicked)
        )

    def _near_misses(self, concepts: tuple[int, ...], relevant: IntArray) -> IntArray:
        """Return papers about one of two concepts, or about concepts related to the only one."""
        partial = {row for concept in concepts for row in self._about[concept]}
        if len(concepts) == 1:
            neighbours = {
                c for row in relevant for c in self._papers[row].concepts if self._fine[c]
            }
            partial = {row for concept in neighbours for row in self._about[concept]}
        return np.setdiff1d(np.array(sorted(partial), dtype=np.int64), relevant)
