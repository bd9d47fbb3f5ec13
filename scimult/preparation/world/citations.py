"""Citations by topic, recency, popularity and copying from reference lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scimult.preparation.world.fields import FieldTree
from scimult.preparation.world.papers import Paper
from scimult.preparation.world.settings import WorldSettings, stream
from scimult.types import IntArray

_LEVEL_WEIGHT = np.array([0.1, 0.3, 1.0])  # coarse, middle, fine: rare concepts weigh more
_MEMORY_YEARS = 2.5  # short, because popularity favours old papers
_COPIED = 0.25


class CitationMaker:
    """Draws the references of papers, in order of publication.

    Most references of a paper are drawn from all earlier papers that share a concept, with weight
    topic squared x recency x (1 + citations so far) (preferential attachment). The rest is copied
    from the reference lists of these, restricted to papers that share a concept too.
    """

    def __init__(self, settings: WorldSettings, tree: FieldTree, papers: Sequence[Paper]) -> None:
        self._papers = papers
        self._rng = stream(settings, "citations")
        self._mean = settings.references
        levels = np.array([tree.fields[concept.field].level for concept in tree.concepts])
        self._concept_weight = _LEVEL_WEIGHT[levels]
        self._years = np.array([paper.year for paper in papers])
        self._citations = np.zeros(len(papers))
        self._earlier: list[list[int]] = [[] for _ in tree.concepts]
        self._references: list[IntArray] = []

    def make(self) -> list[IntArray]:
        """Return the sorted rows of the earlier papers that each paper cites."""
        for row, paper in enumerate(self._papers):
            cited = self._cite(row, paper)
            self._citations[cited] += 1
            self._references.append(cited)
            for concept in paper.concepts:
                self._earlier[concept].append(row)
        return self._references

    def _cite(self, row: int, paper: Paper) -> IntArray:
        topic = self._topic(row, paper)
        candidates = np.flatnonzero(topic)
        count = 1 + int(self._rng.poisson(self._mean - 1))
        age = self._years[row] - self._years[candidates]
        recency = np.exp(-age / _MEMORY_YEARS)
        popularity = 1.0 + self._citations[candidates]
        weights = topic[candidates] ** 2 * recency * popularity
        direct = candidates[self._draw(weights, round(count * (1 - _COPIED)))]
        copied = self._copied(direct, topic, count - len(direct))
        return np.sort(np.concatenate([direct, copied])).astype(np.int64)

    def _topic(self, row: int, paper: Paper) -> NDArray[np.float64]:
        """Return the weight of the concepts shared with every earlier paper."""
        topic = np.zeros(row)
        for concept in paper.concepts:
            topic[self._earlier[concept]] += self._concept_weight[concept]
        return topic

    def _copied(self, direct: IntArray, topic: NDArray[np.float64], count: int) -> IntArray:
        lists = [self._references[row] for row in direct]
        if not lists:
            return np.zeros(0, dtype=np.int64)
        rows, times = np.unique(np.concatenate(lists), return_counts=True)
        fresh = ~np.isin(rows, direct) & (topic[rows] > 0)
        rows, times = rows[fresh], times[fresh]
        copied: IntArray = rows[self._draw(times * topic[rows], count)]
        return copied

    def _draw(self, weights: NDArray[np.float64], count: int) -> IntArray:
        """Draw positions without replacement, in proportion to their weights (Gumbel top-k)."""
        keys = np.log(weights) + self._rng.gumbel(size=len(weights))
        order: IntArray = np.argsort(-keys)
        return order[:count]
