"""The corpus that ``scimult prepare`` collects: texts in a store, metadata in flat arrays."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pyarrow as pa

from scimult.data.lines import Record, Rejects
from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStoreWriter
from scimult.preparation.metadata import FILE_NAME, NONE, VERSION
from scimult.types import IntArray, Text


class IntPairs:
    """A growing list of integer pairs, 16 bytes each."""

    def __init__(self) -> None:
        self._first = array("q")
        self._second = array("q")

    def __len__(self) -> int:
        return len(self._first)

    def append(self, first: int, second: int) -> None:
        """Add one pair."""
        self._first.append(first)
        self._second.append(second)

    def columns(self, start: int = 0, stop: int | None = None) -> tuple[IntArray, IntArray]:
        """Return copies of both columns, from ``start`` to ``stop``."""
        return (
            np.array(self._first[start:stop], dtype=np.int64),
            np.array(self._second[start:stop], dtype=np.int64),
        )


class FileTexts:
    """Adds the texts of one file to the store; an id may occur once per file.

    An id that an earlier file gave is merged: the earlier text stays.

    Parameters
    ----------
    store : TextStoreWriter
        Where texts go.
    """

    def __init__(self, store: TextStoreWriter) -> None:
        self._store = store
        self._start = len(store)
        self._new_lines = array("q")
        self._new_ids: list[str] = []
        self._merged_lines: dict[int, int] = {}

    def add(self, identifier: str, text: Text, record: Record) -> int:
        """Return the row of a text that ``record`` gives.

        Raises
        ------
        DataError
            If the same file gave the id before.
        """
        row = self._store.row(identifier)
        if row is None:
            self._new_lines.append(record.line)
            self._new_ids.append(identifier)
            return self._store.add(identifier, text)
        if row in self._merged_lines or row >= self._start:
            line = self._merged_lines[row] if row < self._start else self.origin(row)[1]
            raise record.error(
                "id occurs twice in one file",
                value=identifier,
                fix=f"remove one of lines {line} and {record.line}, or give it another id",
            )
        self._merged_lines[row] = record.line
        return row

    def origin(self, row: int) -> tuple[str, int]:
        """Return id and line of a text that is new in this file."""
        return self._new_ids[row - self._start], self._new_lines[row - self._start]

    @property
    def rows(self) -> range:
        """Rows of the texts that are new in this file."""
        return range(self._start, self._start + len(self._new_lines))

    @property
    def merged(self) -> int:
        """Number of texts that an earlier file had given."""
        return len(self._merged_lines)


class Corpus:
    """Texts, metadata and label assignments of all papers read so far.

    Texts are added in the order labels, papers, queries; each kind is one range of rows.
    Read all labels before the first paper, and all papers before the first query.

    Parameters
    ----------
    texts : TextStoreWriter
        Open writer.
    rejects : Rejects
        Takes what cannot be used.
    """

    def __init__(self, texts: TextStoreWriter, rejects: Rejects) -> None:
        self.texts = texts
        self.rejects = rejects
        self.label_rows: dict[str, range] = {}
        self.labels = IntPairs()
        self._authors = IntPairs()
        self._author_codes: dict[str, int] = {}
        self._venue_codes: dict[str, int] = {}
        self._first_paper = NONE
        self._venues = array("q")
        self._years = array("q")
        self._dois: list[str | None] = []

    def paper_row(self, record: Record, column: str, namespace: str) -> int:
        """Return the row of the paper that a table names.

        Raises
        ------
        DataError
            If the namespace has no such paper.
        """
        identifier = record.identifier(column)
        row = self.texts.row(f"{namespace}:{identifier}")
        if row is None:
            raise record.error(
                f"column {column!r} names an unknown paper",
                value=identifier,
                fix=f"add the paper to {namespace!r}, remove this line, or pass --skip-bad",
            )
        return row

    def add_paper(
        self, row: int, authors: list[str], venue: str, year: int | None, doi: str = ""
    ) -> None:
        """Keep the metadata of a paper; what an earlier source gave stays."""
        if self._first_paper == NONE:
            self._first_paper = row
        position = row - self._first_paper
        assert position <= len(self._years), "papers are one range of rows"
        if position == len(self._years):
            self._venues.append(NONE)
            self._years.append(NONE)
            self._dois.append(None)
        for author in authors:
            self._authors.append(
                position, self._author_codes.setdefault(author, len(self._author_codes))
            )
        if venue and self._venues[position] == NONE:
            self._venues[position] = self._venue_codes.setdefault(venue, len(self._venue_codes))
        if year is not None and self._years[position] == NONE:
            self._years[position] = year
        if doi and self._dois[position] is None:
            self._dois[position] = doi

    def add_labels(self, row: int, labels: list[str], namespace: str, record: Record) -> None:
        """Assign labels to a paper; each label that no definition names is rejected by itself."""
        for label in labels:
            label_row = self.texts.row(f"{namespace}/label:{label}")
            if label_row is not None:
                self.labels.append(row, label_row)
                continue
            error = record.error(
                "label that no definition names",
                value=label,
                fix=f"add it to a labels file of {namespace!r}, remove it, or pass --skip-bad",
            )
            self.rejects.reject(error)

    def write_metadata(self, folder: Path) -> None:
        """Write ``metadata.arrow``: one row per paper, in the order of the text store."""
        count = len(self._years)
        authors = Ragged.from_pairs(*self._authors.columns(), count)
        label_papers, label_rows = self.labels.columns()
        labels = Ragged.from_pairs(label_papers - self._first_paper, label_rows, count)
        years = np.array(self._years, dtype=np.int64)
        columns = {
            "row": pa.array(np.arange(count, dtype=np.int64) + self._first_paper),
            "authors": _list_array(authors, _named(authors.values, self._author_codes)),
            "venue": _named(np.array(self._venues, dtype=np.int64), self._venue_codes),
            "year": pa.array(years, pa.int64(), mask=years == NONE),
            "labels": _list_array(labels, pa.array(labels.values, pa.int64())),
        }
        if any(self._dois):
            columns["doi"] = pa.array(self._dois, pa.string())
        described = {"scimult.format": "metadata", "scimult.version": VERSION}
        table = pa.table(columns).replace_schema_metadata(described)
        with pa.ipc.new_file(str(folder / FILE_NAME), table.schema) as writer:
            writer.write_table(table)


def parse_text(record: Record, kind: str) -> Text:
    """Return the text of a paper, label or query record.

    Raises
    ------
    DataError
        If a field is missing or of another type, or there is no text at all.
    """
    if kind == "paper":
        # Dumps write null for "there is none"; a field that is not there may be misnamed.
        none = "" if "abstract" in record.fields else None
        text = Text("paper", record.text("title"), record.text("abstract", none))
        problem = "title and abstract are both empty"
    elif kind == "label":
        text = Text("label", record.text("name"), record.text("definition", ""))
        problem = "name of the label is empty"
    else:
        text = Text("query", record.text("text"))
        problem = "query is empty"
    filled = text.title.strip() or (kind == "paper" and text.body.strip())
    if not filled:
        fix = "fill it in, remove the record, or pass --skip-bad"
        raise record.error(problem, value=record.fields.get("id"), fix=fix)
    return text


def _named(codes: IntArray, names: dict[str, int]) -> pa.DictionaryArray:
    indices = pa.array(codes, pa.int32(), mask=codes == NONE)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string()))


def _list_array(lists: Ragged, values: pa.Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(lists.offsets, pa.int64()), values)
