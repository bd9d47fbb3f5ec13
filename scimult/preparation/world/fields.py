"""The tree of fields and their concepts, each with several surface forms."""

from __future__ import annotations

from dataclasses import dataclass

from scimult.preparation.world.settings import WorldSettings, stream
from scimult.preparation.world.words import WordMaker

COARSE, MIDDLE, FINE = 0, 1, 2
_LEVEL_NAMES = ("area", "branch", "field")
_HEADS_PER_COARSE_FIELD = 6


@dataclass(frozen=True, slots=True)
class Concept:
    """A topic of papers; ``forms`` are its spellings, ``usage`` how often each is used."""

    field: int
    forms: tuple[str, ...]
    usage: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A node of the tree, from level 0 (coarse) to 2 (fine), with its own concepts."""

    id: str
    name: str
    level: int
    parent: int | None
    concepts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FieldTree:
    """All fields (parents before children) and all concepts."""

    fields: tuple[Field, ...]
    concepts: tuple[Concept, ...]

    def level(self, level: int) -> list[int]:
        """Return the indices of the fields of one level."""
        return [index for index, field in enumerate(self.fields) if field.level == level]

    def lineage(self, field: int) -> list[int]:
        """Return a field and its ancestors, the field itself first."""
        chain = [field]
        while (parent := self.fields[chain[-1]].parent) is not None:
            chain.append(parent)
        return chain

    def children(self, field: int) -> list[int]:
        """Return the fields directly below a field."""
        return [index for index, child in enumerate(self.fields) if child.parent == field]


class TreeBuilder:
    """Builds the tree of fields and their concepts from the top."""

    def __init__(self, settings: WorldSettings, words: WordMaker) -> None:
        self._settings, self._words = settings, words
        self._rng = stream(settings, "fields")
        self._fields: list[Field] = []
        self._concepts: list[Concept] = []

    def build(self) -> FieldTree:
        """Return the tree of fields of a world."""
        for _ in range(self._settings.coarse_fields):
            heads = [self._words.noun() for _ in range(_HEADS_PER_COARSE_FIELD)]
            coarse = self._add(COARSE, self._words.field(), None, heads)
            for _ in range(self._settings.middle_fields):
                subject = self._words.field()
                middle = self._add(MIDDLE, subject, coarse, heads)
                for _ in range(self._settings.fine_fields):
                    self._add(FINE, f"{self._words.adjective()} {subject}", middle, heads)
        return FieldTree(tuple(self._fields), tuple(self._concepts))

    def _add(self, level: int, name: str, parent: int | None, heads: list[str]) -> int:
        index = len(self._fields)
        first = len(self._concepts)
        for _ in range(self._settings.concepts[level]):
            self._concepts.append(self._concept(index, heads))
        number = sum(field.level == level for field in self._fields)
        self._fields.append(
            Field(
                id=f"{_LEVEL_NAMES[level]}-{number:03d}",
                name=name,
                level=level,
                parent=parent,
                concepts=tuple(range(first, len(self._concepts))),
            )
        )
        return index

    def _concept(self, field: int, heads: list[str]) -> Concept:
        """Return a concept whose forms are a phrase, a term, another phrase and a blend.

        Nouns of phrases are shared within a coarse field: a shared word does not imply a shared
        concept, and two forms of one concept need not share any word.
        """
        first, second = self._rng.choice(heads, size=2, replace=False)
        adjective = self._words.adjective()
        forms = [f"{adjective} {first}", self._words.noun()]
        forms.append(f"{self._words.adjective()} {second}")
        forms.append(self._words.blend(adjective, first))
        least, most = self._settings.forms
        forms = forms[: self._rng.integers(least, most + 1)]
        usage = 1.0 / (1.0 + self._rng.permutation(len(forms)))
        return Concept(field, tuple(forms), tuple((usage / usage.sum()).tolist()))
