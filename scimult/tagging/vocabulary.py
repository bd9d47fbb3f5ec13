"""Controlled vocabularies: concepts with names and broader concepts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import overload

import numpy as np

from scimult.data.ragged import Ragged
from scimult.errors import DataError, suggest
from scimult.terminal import counted, is_blank, is_one_line
from scimult.types import IntArray, Text

_MOST_IDS = 6


@dataclass(frozen=True, slots=True)
class Concept:
    """One term of a vocabulary.

    Attributes
    ----------
    id : str
        A URI, or any other unique name.
    label : str
        The preferred name.
    synonyms : tuple of str
        Other names.
    broader : tuple of str
        Ids of the directly broader concepts.
    description, notation : str
        Definition, and code in a classification; may be empty.
    """

    id: str
    label: str
    synonyms: tuple[str, ...] = ()
    broader: tuple[str, ...] = ()
    description: str = ""
    notation: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The label and the synonyms."""
        return (self.label, *self.synonyms)

    @property
    def text(self) -> Text:
        """Label and description, for an encoder."""
        return Text("label", self.label, self.description)


class Vocabulary(Sequence[Concept]):
    """Concepts in the order given, with their hierarchy.

    ``order_C`` holds all rows, each after those above it; ``position_C`` is its inverse.

    Parameters
    ----------
    concepts : iterable of Concept or str
        At least one; a string is both id and name.
    path : path, optional
        Source file, for messages.
    lines : sequence of int, optional
        Line of each concept in the file.

    Raises
    ------
    DataError
        If there are no concepts, or a single string; one is of another type, has no label or no id
        of one line, an id is repeated, a broader concept is not in the vocabulary, or broader
        concepts form a cycle.
    """

    def __init__(
        self,
        concepts: Iterable[Concept | str],
        path: Path | str | None = None,
        lines: Sequence[int] | None = None,
    ) -> None:
        if isinstance(concepts, str):
            raise DataError("concepts is a single name", value=concepts, fix="pass a list of names")
        given: list[object] = list(concepts)
        self._concepts = [_concept(row, one) for row, one in enumerate(given)]
        self.path, self._lines = path, lines
        if not self._concepts:
            fix = "give at least one concept, each with an id and a label"
            raise DataError("vocabulary is empty", path=path, fix=fix)
        self._rows: dict[str, int] = {}
        for row, concept in enumerate(self._concepts):
            if is_blank(concept.id) or not is_one_line(concept.id):
                fix = "give every concept an id without line breaks and control characters"
                raise self._error("concept has no id, or not one line", row, concept.id, fix)
            if is_blank(concept.label):
                raise self._error("concept has no label", row, concept.id, "give it a label")
            if self._rows.setdefault(concept.id, row) != row:
                fix = "give every concept its own id"
                raise self._error("repeated concept", row, concept.id, fix)
        self.parents = Ragged.from_lists(map(self._parents_of, range(len(self))))
        self.order_C = self._topological_order()
        self.position_C = np.empty_like(self.order_C)
        self.position_C[self.order_C] = np.arange(len(self))

    def __len__(self) -> int:
        return len(self._concepts)

    def __iter__(self) -> Iterator[Concept]:
        return iter(self._concepts)

    @overload
    def __getitem__(self, row: int) -> Concept: ...

    @overload
    def __getitem__(self, row: slice) -> list[Concept]: ...

    def __getitem__(self, row: int | slice) -> Concept | list[Concept]:
        return self._concepts[row]

    def __repr__(self) -> str:
        links = f", {len(self.parents.values):,} broader" if self.has_hierarchy else ""
        return f"Vocabulary({counted(len(self), 'concept')}{links})"

    @property
    def ids(self) -> list[str]:
        """Ids of the concepts."""
        return [concept.id for concept in self]

    @property
    def has_hierarchy(self) -> bool:
        """Whether any concept has a broader one."""
        return bool(len(self.parents.values))

    def row(self, name: str) -> int:
        """Return the row of a concept by its id or an unambiguous name.

        Case, spaces and how accents are composed are ignored in names; labels precede synonyms.

        Raises
        ------
        DataError
            If no concept or several have this name.
        """
        rows = self._matches(name)
        if len(rows) == 1:
            return rows[0]
        if rows:
            ids = ", ".join(self[row].id for row in rows[:_MOST_IDS])
            problem = "several concepts have this name"
            raise DataError(problem, path=self.path, value=name, fix=f"use one of the ids: {ids}")
        close = suggest(name, [*self._rows, *(concept.label for concept in self)][:50_000])
        fix = f"use an id or a name of the vocabulary{close}"
        raise DataError("no concept has this name", path=self.path, value=name, fix=fix)

    def rows(self, names: Iterable[str]) -> set[int]:
        """Return the rows of concepts; see `row`.

        Raises
        ------
        DataError
            As `row`, or if it is a single name.
        """
        if isinstance(names, str):
            raise DataError("a single name, not a list", value=names, fix="pass a list of names")
        return {self.row(name) for name in names}

    def knows(self, name: str) -> bool:
        """Return whether `row` finds a concept."""
        return len(self._matches(name)) == 1

    def _matches(self, name: str) -> list[int]:
        if name in self._rows:
            return [self._rows[name]]
        plain = _plain(name)
        return self._by_label.get(plain) or self._by_synonym.get(plain) or []

    def ancestors(self, row: int) -> set[int]:
        """Return the rows of all concepts above one."""
        above: set[int] = set()
        pending = [row]
        while pending:
            for parent in self.parents[pending.pop()].tolist():
                if parent not in above:
                    above.add(parent)
                    pending.append(parent)
        return above

    def closed(self, rows: Iterable[int]) -> set[int]:
        """Return rows together with all concepts above them."""
        own = set(rows)
        return own.union(*(self.ancestors(row) for row in own))

    @cached_property
    def _by_label(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, concept in enumerate(self):
            rows.setdefault(_plain(concept.label), []).append(row)
        return rows

    @cached_property
    def _by_synonym(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, concept in enumerate(self):
            for plain in {_plain(name) for name in concept.synonyms}:
                rows.setdefault(plain, []).append(row)
        return rows

    def _parents_of(self, row: int) -> list[int]:
        concept = self[row]
        for name in concept.broader:
            if name not in self._rows:
                problem = f"broader concept of {concept.id!r} is not in the vocabulary"
                fix = "add the broader concept, or remove the link"
                raise self._error(problem, row, name, fix)
        return [self._rows[name] for name in dict.fromkeys(concept.broader)]

    def _error(self, problem: str, row: int, value: str, fix: str) -> DataError:
        line = None if self._lines is None else self._lines[row]
        return DataError(problem, path=self.path, line=line, value=value, fix=fix)

    def _topological_order(self) -> IntArray:
        """Return all rows, each after those above it."""
        sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(self)), ()))
        for row, parent in zip(self.parents.owners, self.parents.values, strict=True):
            sorter.add(int(row), int(parent))
        try:
            return np.array([*sorter.static_order()], dtype=np.int64)
        except CycleError as error:
            rows = error.args[1][::-1]
            cycle = " > ".join(self[row].id for row in rows)
            fix = "remove one of these broader links"
            problem = "broader concepts form a cycle"
            raise self._error(problem, rows[0], cycle, fix) from None


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name.casefold()).split())


def _concept(row: int, given: object) -> Concept:
    if isinstance(given, str):
        return Concept(given, given)
    if not isinstance(given, Concept):
        fix = 'pass names, or Concept("id", "name")'
        raise DataError(f"concept {row} is of type {type(given).__name__}", fix=fix)
    return given
