"""The user's papers, labels and queries by id: what a model searches, links and tags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scimult.data.lines import Record, Rejects, read_jsonl
from scimult.data.rows import read_parquet, read_rows
from scimult.data.text_files import find_file, is_table, raw_columns
from scimult.errors import DataError, suggest
from scimult.inference.texts import Fields, unread_text
from scimult.types import Kind, Text

# Fields to read from a record: those of the title, then those of the body.
FIELDS: dict[Kind, Fields] = {
    "paper": (("title",), ("abstract", "text")),
    "label": (("name",), ("definition",)),
    "query": (("text",), ()),
}


@dataclass(frozen=True)
class Collection:
    """Texts with distinct ids, in the order of their file.

    Attributes
    ----------
    path : Path
        The file.
    ids : list of str
        One id per text.
    texts : list of Text
        The texts.
    """

    path: Path
    ids: list[str]
    texts: list[Text]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def row(self, name: str) -> int:
        """Return the row of the text with id ``name``.

        Raises
        ------
        DataError
            If no text has it; the message suggests the closest id.
        """
        if name not in self._rows:
            fix = f"use an id of this file{suggest(name, self.ids)}"
            raise DataError("no text has this id", path=self.path, value=name, fix=fix)
        return self._rows[name]

    def titled(self, title: str) -> list[int]:
        """Return the rows of all texts with this title, ignoring case and spacing."""
        wanted = _plain(title)
        return [row for row, text in enumerate(self.texts) if _plain(text.title) == wanted]


def read_collection(path: Path | str, kind: Kind, rejects: Rejects) -> Collection:
    """Read papers, labels or queries from a JSON lines file, or from its folder.

    Papers have ``id`` (or ``_id``), ``title`` and ``abstract`` (or ``text``); labels have
    ``id``, ``name`` and ``definition``; queries have ``id`` and ``text``. A body may be absent or
    empty, a whole text may not. Other fields are ignored, unless they hold text that was meant to
    be read: ``titel``, or the ``abstract`` of a label.

    Raises
    ------
    DataError
        If there is no such file, or no text is left; and, through ``rejects``, if a record is
        bad, an id repeats or a text is empty.
    """
    file = find_file(path, kind)
    texts: dict[str, Text] = {}
    for record, (name, text) in read_records(file, kind, rejects):
        if name in texts:
            fix = "give every text its own id, or remove the repetition"
            rejects.reject(record.error("id is given twice", value=name, fix=fix))
            continue
        texts[name] = text
    if not texts:
        raise DataError(f"no {kind} is left", path=file, fix="add one that has an id and a text")
    return Collection(file, list(texts), list(texts.values()))


def read_records(
    file: Path, kind: Kind, rejects: Rejects
) -> Iterator[tuple[Record, tuple[str, Text]]]:
    """Yield each record of a JSON lines file with its id and text; see `read_collection`.

    Also reads files that `scimult prepare SOURCE --raw` wrote, and labels in CSV or TSV.
    """
    if raw_columns(file) is not None:
        records = read_parquet(file, (), rejects)
    elif kind == "label" and is_table(file):
        records = read_rows(file, rejects)
    else:
        records = read_jsonl(file, rejects)
    return rejects.keep(records, lambda record: (record, _parse(record, kind)))


def _parse(record: Record, kind: Kind) -> tuple[str, Text]:
    if error := unread_text(record.fields, kind, FIELDS[kind]):
        raise record.error(error.problem, value=error.value, fix=str(error.fix))
    name = record.identifier("_id" if "_id" in record.fields else "id")
    if not name.isprintable():
        raise record.error("id holds a line break or control character", value=name, fix="drop it")
    if kind == "label":
        title, body = record.text("name"), record.text("definition", "")
    elif kind == "query":
        title, body = record.text("text"), ""
    else:
        title = record.text("title", "")
        body = record.text("abstract" if "abstract" in record.fields else "text", "")
    text = Text(kind, title.strip(), body.strip())
    if not (text.title or text.body):
        raise record.error(f"{kind} has no text", value=name, fix="write a title or a body")
    return name, text


def _plain(title: str) -> str:
    return " ".join(title.casefold().split())
