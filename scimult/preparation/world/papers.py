"""Papers of a world without their texts: authors, venues, years, fields, concepts, citations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scimult.preparation.world.fields import (
    COARSE,
    FINE,
    MIDDLE,
    FieldTree,
    WordMaker,
    WorldSettings,
    stream,
)
from scimult.types import IntArray

_AUTHORS_PER_PAPER = 0.6
_VENUES_PER_MIDDLE_FIELD = 2
_VENUE_KINDS = ("Journal of", "Conference on", "Transactions on", "Workshop on")
_LEVEL_WEIGHT = np.array([0.1, 0.3, 1.0])  # coarse, middle, fine: rare concepts weigh more
_MEMORY_YEARS = 2.5  # short, because popularity favours old papers
_COPIED = 0.25


@dataclass(frozen=True, slots=True)
class Paper:
    """The facts of a paper; papers are numbered in order of publication.

    ``fields`` are fine fields, the main one first; ``concepts`` are sorted by importance.
    """

    year: int
    fields: tuple[int, ...]
    concepts: tuple[int, ...]
    authors: tuple[str, ...]
    venue: str


class PaperMaker:
    """Draws papers from communities: authors and venues by field."""

    def __init__(self, settings: WorldSettings, tree: FieldTree, words: WordMaker) -> None:
        self._settings, self._tree = settings, tree
        self._rng = stream(settings, "papers")
        self._fine = tree.level(FINE)
        self._below = {
            node: [field for field in self._fine if node in tree.lineage(field)]
            for node in (*tree.level(COARSE), *tree.level(MIDDLE))
        }
        popularity = 1.0 / np.sqrt(3.0 + self._rng.permutation(len(self._fine)))
        self._popularity = popularity / popularity.sum()
        authors = max(4, round(settings.papers * _AUTHORS_PER_PAPER / len(self._fine)))
        self._communities = {
            field: [f"{words.name()} {words.name()}" for _ in range(authors)]
            for field in self._fine
        }
        self._venues = {field: self._venue_names(field) for field in tree.level(MIDDLE)}

    def make(self) -> list[Paper]:
        """Return the papers of a world, oldest first."""
        years = np.arange(self._settings.first_year, self._settings.last_year + 1)
        weights = self._settings.yearly_growth ** np.arange(len(years))
        paper_years = self._rng.choice(years, size=self._settings.papers, p=weights / weights.sum())
        return [self._paper(year) for year in sorted(paper_years.tolist())]

    def _venue_names(self, middle: int) -> list[str]:
        kinds = self._rng.permutation(_VENUE_KINDS)[:_VENUES_PER_MIDDLE_FIELD]
        return [f"{kind} {self._tree.fields[middle].name.capitalize()}" for kind in kinds]

    def _paper(self, year: int) -> Paper:
        main = int(self._rng.choice(self._fine, p=self._popularity))
        fields = (main, *self._other_fields(main))
        venues = self._venues[self._tree.lineage(main)[1]]
        concepts, authors = self._concepts(fields), self._authors(fields)
        return Paper(year, fields, concepts, authors, venues[self._rng.integers(len(venues))])

    def _other_fields(self, main: int) -> list[int]:
        """Return up to 2 further fields, mostly from the same branch or area."""
        _, middle, coarse = self._tree.lineage(main)
        choices = (self._below[middle], self._below[coarse], self._fine)
        others: list[int] = []
        for _ in range(self._rng.choice(3, p=(0.45, 0.4, 0.15))):
            near = choices[self._rng.choice(3, p=(0.5, 0.3, 0.2))]
            field = int(self._rng.choice(near))
            if field != main and field not in others:
                others.append(field)
        return others

    def _concepts(self, fields: tuple[int, ...]) -> tuple[int, ...]:
        """Return the concepts of the main field, of the other fields, then general ones."""
        main, middle, coarse = self._tree.lineage(fields[0])
        concepts = self._draw(main, int(self._rng.integers(2, 4)))
        for field in fields[1:]:
            concepts += self._draw(field, int(self._rng.integers(1, 3)))
        return (*concepts, *self._draw(middle, 1), *self._draw(coarse, 1))

    def _draw(self, field: int, count: int) -> list[int]:
        own = self._tree.fields[field].concepts
        concepts: list[int] = self._rng.choice(own, min(count, len(own)), replace=False).tolist()
        return concepts

    def _authors(self, fields: tuple[int, ...]) -> tuple[str, ...]:
        """Return 1 to 4 authors: the first from the main field, the rest from any field."""
        names = [self._member(fields[0])]
        for _ in range(self._rng.integers(4)):
            names.append(self._member(int(self._rng.choice(fields))))
        return tuple(dict.fromkeys(names))

    def _member(self, field: int) -> str:
        community = self._communities[field]
        # The square lets a few members of each community write most of its papers.
        return community[int(len(community) * self._rng.random() ** 2)]


def make_references(
    settings: WorldSettings, tree: FieldTree, papers: Sequence[Paper]
) -> list[IntArray]:
    """Return the sorted rows of the earlier papers that each paper cites.

    Most references of a paper are drawn from all earlier papers that share a concept, with weight
    topic squared x recency x (1 + citations so far) (preferential attachment). The rest is copied
    from the reference lists of these, restricted to papers that share a concept too.
    """
    rng = stream(settings, "citations")
    weight_of = _LEVEL_WEIGHT[[tree.fields[concept.field].level for concept in tree.concepts]]
    years, citations = np.array([paper.year for paper in papers]), np.zeros(len(papers))
    earlier: list[list[int]] = [[] for _ in tree.concepts]
    references: list[IntArray] = []

    def draw(weights: NDArray[np.float64], count: int) -> IntArray:
        """Draw positions without replacement, in proportion to their weights (Gumbel top-k)."""
        order: IntArray = np.argsort(-(np.log(weights) + rng.gumbel(size=len(weights))))
        return order[:count]

    for row, paper in enumerate(papers):
        topic = np.zeros(row)
        for concept in paper.concepts:
            topic[earlier[concept]] += weight_of[concept]
            earlier[concept].append(row)
        shared = np.flatnonzero(topic)
        count = 1 + int(rng.poisson(settings.references - 1))
        recency = np.exp((years[shared] - years[row]) / _MEMORY_YEARS)
        weights = topic[shared] ** 2 * recency * (1.0 + citations[shared])
        direct = shared[draw(weights, round(count * (1 - _COPIED)))]
        lists = [np.empty(0, np.int64), *(references[cited] for cited in direct)]
        rows, times = np.unique(np.concatenate(lists), return_counts=True)
        fresh = ~np.isin(rows, direct) & (topic[rows] > 0)
        rows, times = rows[fresh], times[fresh]
        copied = rows[draw(times * topic[rows], count - len(direct))]
        references.append(np.sort(np.concatenate([direct, copied])))
        citations[references[-1]] += 1
    return references
