"""Papers of a world: authors, venues, years, fields and concepts, but no texts or citations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scimult.preparation.world.fields import COARSE, FINE, MIDDLE, FieldTree
from scimult.preparation.world.settings import WorldSettings, stream
from scimult.preparation.world.words import WordMaker

_AUTHORS_PER_PAPER = 0.6
_VENUES_PER_MIDDLE_FIELD = 2
_VENUE_KINDS = ("Journal of", "Conference on", "Transactions on", "Workshop on")


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
        return [self._paper(year) for year in self._years()]

    def _years(self) -> list[int]:
        years = np.arange(self._settings.first_year, self._settings.last_year + 1)
        weights = self._settings.yearly_growth ** np.arange(len(years))
        sample = self._rng.choice(years, size=self._settings.papers, p=weights / weights.sum())
        return sorted(sample.tolist())

    def _venue_names(self, middle: int) -> list[str]:
        kinds = self._rng.permutation(_VENUE_KINDS)[:_VENUES_PER_MIDDLE_FIELD]
        return [f"{kind} {self._tree.fields[middle].name.capitalize()}" for kind in kinds]

    def _paper(self, year: int) -> Paper:
        main = int(self._rng.choice(self._fine, p=self._popularity))
        fields = (main, *self._other_fields(main))
        middle = self._tree.lineage(main)[1]
        venues = self._venues[middle]
        return Paper(
            year=year,
            fields=fields,
            concepts=self._concepts(fields),
            authors=self._authors(fields),
            venue=venues[self._rng.integers(len(venues))],
        )

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
        concepts += self._draw(middle, 1) + self._draw(coarse, 1)
        return tuple(concepts)

    def _draw(self, field: int, count: int) -> list[int]:
        own = self._tree.fields[field].concepts
        size = min(count, len(own))
        return [int(concept) for concept in self._rng.choice(own, size=size, replace=False)]

    def _authors(self, fields: tuple[int, ...]) -> tuple[str, ...]:
        """Return 1 to 4 authors: the first from the main field, the rest from any field."""
        names = [self._member(fields[0])]
        for _ in range(self._rng.integers(4)):
            name = self._member(int(self._rng.choice(fields)))
            if name not in names:
                names.append(name)
        return tuple(names)

    def _member(self, field: int) -> str:
        community = self._communities[field]
        # The square lets a few members of each community write most of its papers.
        return community[int(len(community) * self._rng.random() ** 2)]
