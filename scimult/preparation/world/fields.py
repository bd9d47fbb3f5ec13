"""Settings of the world, invented words, and the tree of fields whose concepts they name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from scimult.config import StrictConfig

COARSE, MIDDLE, FINE = 0, 1, 2
_LEVEL_NAMES = ("area", "branch", "field")
_HEADS_PER_COARSE_FIELD = 6
_ONSETS = "b br c ch d dr f fl g gr h j k l m n p pl pr qu r s sh st t tr v z".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "", "l", "m", "n", "r", "s", "x"]
_ENDINGS = {
    "noun": "ation ance ism ity or oid ent ure age ine".split(),
    "adjective": "al ic ive ous ant ary ile ate".split(),
    "discipline": "ics ology onomy istry".split(),
    "name": [""],
}


class WorldSettings(StrictConfig):
    """Size and shape of a generated scholarly world, which is a pure function of them.

    The tree of fields has three levels (coarse, middle, fine). ``concepts`` is the number of
    concepts of each field, per level; papers of the last ``held_out_years`` are kept for
    evaluation.
    """

    model_config = ConfigDict(frozen=True)

    seed: int = Field(0, ge=0)
    papers: int = Field(3000, ge=300, le=10_000_000)
    first_year: int = 2000
    last_year: int = 2019
    yearly_growth: float = Field(1.08, gt=0.5, le=2.0)
    held_out_years: int = Field(2, ge=1)

    coarse_fields: int = Field(6, ge=2)
    middle_fields: int = Field(4, ge=1)
    fine_fields: int = Field(4, ge=1)
    concepts: tuple[int, int, int] = (3, 2, 4)
    forms: tuple[int, int] = (2, 4)

    references: float = Field(8.0, ge=1)
    queries_per_paper: float = Field(1.0, gt=0)
    shown: int = Field(10, ge=4)
    eval_queries: int = Field(200, ge=1)
    rerank_cited: int = Field(5, ge=1)
    rerank_others: int = Field(25, ge=1)

    @model_validator(mode="after")
    def _check(self) -> WorldSettings:
        if self.last_year - self.first_year < 2 * self.held_out_years:
            raise ValueError("last_year - first_year must be at least twice held_out_years")
        if not 2 <= self.forms[0] <= self.forms[1] <= 4:
            raise ValueError("forms must be (least, most) with 2 <= least <= most <= 4")
        if min(self.concepts) < 2:
            raise ValueError("every field needs at least 2 concepts")
        return self


def stream(settings: WorldSettings, part: str) -> np.random.Generator:
    """Return the random generator of one part of the world; no part affects another."""
    return np.random.default_rng([settings.seed, *part.encode()])


class WordMaker:
    """Draws invented words, each at most once; ``reserved`` are real words, never invented."""

    def __init__(self, rng: np.random.Generator, reserved: frozenset[str]) -> None:
        self._rng = rng
        self._taken = set(reserved)

    def new(self, kind: str) -> str:
        """Return a new noun, adjective, discipline or name."""
        while True:
            parts = (*(_ONSETS, _VOWELS, _CODAS) * 2, _ENDINGS[kind])
            word = "".join(options[self._rng.integers(len(options))] for options in parts)
            if word not in self._taken:
                self._taken.add(word)
                return word

    def name(self) -> str:
        """Return a new proper name."""
        return self.new("name").capitalize()

    def blend(self, first: str, second: str) -> str:
        """Return a new word from the shortest possible prefixes of two words."""
        for length in range(3, len(first) + len(second) + 1):
            word = first[:length] + second[:length]
            if word not in self._taken:
                self._taken.add(word)
                return word
        return self.new("noun")


@dataclass(frozen=True, slots=True)
class Concept:
    """A topic of papers; ``forms`` are its spellings, ``usage`` how often each is used."""

    field: int
    forms: tuple[str, ...]
    usage: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FieldOfStudy:
    """A node of the tree, from level 0 (coarse) to 2 (fine), with its own concepts."""

    id: str
    name: str
    level: int
    parent: int | None
    concepts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FieldTree:
    """All fields (parents before children) and all concepts."""

    fields: list[FieldOfStudy]
    concepts: list[Concept]

    def level(self, level: int) -> list[int]:
        """Return the indices of the fields of one level."""
        return [index for index, field in enumerate(self.fields) if field.level == level]

    def lineage(self, field: int) -> list[int]:
        """Return a field and its ancestors, the field itself first."""
        chain = [field]
        while (parent := self.fields[chain[-1]].parent) is not None:
            chain.append(parent)
        return chain

    def concepts_of(self, level: int) -> set[int]:
        """Return the concepts of the fields of one level."""
        return {c for field in self.level(level) for c in self.fields[field].concepts}


def make_tree(settings: WorldSettings, words: WordMaker) -> FieldTree:
    """Return the fields of a world and their concepts, built from the top."""
    tree, rng = FieldTree([], []), stream(settings, "fields")

    def concept(heads: list[str]) -> Concept:
        # Nouns of phrases are shared within a coarse field: a shared word does not imply a shared
        # concept, and two forms of one concept need not share any word.
        first, second = rng.choice(heads, size=2, replace=False)
        adjective = words.new("adjective")
        forms = [f"{adjective} {first}", words.new("noun"), f"{words.new('adjective')} {second}"]
        forms.append(words.blend(adjective, first))
        forms = forms[: rng.integers(settings.forms[0], settings.forms[1] + 1)]
        usage = 1.0 / (1.0 + rng.permutation(len(forms)))
        return Concept(len(tree.fields), tuple(forms), tuple((usage / usage.sum()).tolist()))

    def add(level: int, name: str, parent: int | None, heads: list[str]) -> int:
        first = len(tree.concepts)
        tree.concepts.extend(concept(heads) for _ in range(settings.concepts[level]))
        own = tuple(range(first, len(tree.concepts)))
        identifier = f"{_LEVEL_NAMES[level]}-{len(tree.level(level)):03d}"
        tree.fields.append(FieldOfStudy(identifier, name, level, parent, own))
        return len(tree.fields) - 1

    for _ in range(settings.coarse_fields):
        heads = [words.new("noun") for _ in range(_HEADS_PER_COARSE_FIELD)]
        coarse = add(COARSE, words.new("discipline"), None, heads)
        for _ in range(settings.middle_fields):
            subject = words.new("discipline")
            middle = add(MIDDLE, subject, coarse, heads)
            for _ in range(settings.fine_fields):
                add(FINE, f"{words.new('adjective')} {subject}", middle, heads)
    return tree
