"""The user's papers, labels and queries by id: what a model searches, links and tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scimult.data.importers import find_files, guess_format, read_papers
from scimult.data.importers.paper import text_id
from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_parquet, read_rows
from scimult.data.text_files import find_file, is_table, raw_columns
from scimult.errors import DataError, suggest
from scimult.inference.texts import Fields, unread_text
from scimult.terminal import is_blank, is_one_line
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
    """Read papers, labels or queries from a file, or from its folder.

    Papers are in any format of ``read_papers``; in plain JSON lines they have ``id`` (or ``_id``),
    ``title`` and ``abstract`` (or ``text``). Labels have ``id``, ``name`` and ``definition``;
    queries have ``id`` and ``text``. A body may be absent or empty, a whole text may not. Other
    fields are ignored, unless they hold text that was meant to be read: ``titel``, or the
    ``abstract`` of a label.

    Raises
    ------
    DataError
        If there is no such file, or no text is left; and, through ``rejects``, if a record is
        bad, an id repeats or a text is empty.
    """
    (first, *_) = text_files([path], kind)
    texts: dict[str, Text] = {}
    for name, text, file, line in read_located([path], kind, rejects):
        if name in texts:
            rejects.reject(given_twice(name, text, file, line))
            continue
        texts[name] = text
    if not texts:
        raise DataError(f"no {kind} is left", path=first, fix="add one that has an id and a text")
    return Collection(first, list(texts), list(texts.values()))


def text_files(files: Sequence[Path | str], kind: Kind) -> list[Path]:
    """Return the files of texts, folders replaced by theirs; globs work for papers."""
    return find_files(files) if kind == "paper" else [find_file(path, kind) for path in files]


def read_located(
    files: Sequence[Path | str],
    kind: Kind,
    rejects: Rejects,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Iterator[tuple[str, Text, Path, int]]:
    """Yield id, text, file and line of every record; see `read_collection`."""
    paths = text_files(files, kind)
    plain = kind != "paper" or (
        not columns and all(guess_format(path, format) == ("json", "plain") for path in paths)
    )
    if plain:
        for path in paths:
            for record, (name, text) in _read_records(path, kind, rejects):
                yield name, text, record.path, record.line
        return
    for paper in read_papers(files, format=format, columns=columns, rejects=rejects):
        yield paper.id, Text("paper", paper.title, paper.abstract), *paper.location


def given_twice(name: str, text: Text, path: Path, line: int) -> DataError:
    """Return the error for an id that an earlier text has."""
    if name == text_id(text.title, text.body):
        problem, name = "title and abstract are those of an earlier paper, and no id", text.title
        fix = "remove the repetition, give both an id, or pass --skip-bad"
    else:
        problem = "id is given twice"
        fix = "give it an id of its own, remove it, or pass --skip-bad"
    return DataError(problem, path=path, line=line, value=name, fix=fix)


def _read_records(
    file: Path, kind: Kind, rejects: Rejects
) -> Iterator[tuple[Record, tuple[str, Text]]]:
    # Labels may also be in CSV or TSV, and all in files that `scimult prepare SOURCE --raw` wrote.
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
    if not is_one_line(name):
        problem = "id holds a line break or control character"
        raise record.error(problem, value=name, fix="remove it")
    if kind == "label":
        title, body = record.text("name"), record.text("definition", "")
    elif kind == "query":
        title, body = record.text("text"), ""
    else:
        title = record.text("title", "")
        body = record.text("abstract", "").strip() or record.text("text", "")
    text = Text(kind, title.strip(), body.strip())
    if is_blank(text.title) and (kind == "label" or is_blank(text.body)):
        problem, fix = f"{kind} has no text", "write a title or a body"
        if kind == "label":
            problem, fix = "label has no name", "write one"
        raise record.error(problem, value=name, fix=fix)
    return name, text


def _plain(title: str) -> str:
    return " ".join(title.casefold().split())
