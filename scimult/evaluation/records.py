"""Records of benchmark files (papers, requests, labels), judgments and splits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from scimult.data.judgments import PAPER, QUERY, grade_of, read_judgments
from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_members
from scimult.data.tables import read_table
from scimult.errors import DataError
from scimult.types import Text

T = TypeVar("T")
Judgments = dict[str, dict[str, int]]
"""Query id to candidate id to grade."""

QUERY_ID = "query_id|query|paper"
"""Fields that may hold a query's id in files of the SciMult release."""

_FIX_LINE = "correct or remove the line"


def by_id(
    path: Path, field_name: str, parse: Callable[[Record], T], rejects: Rejects
) -> dict[str, T]:
    """Parse the records of a JSON lines file by id; reject repeated ids.

    ``field_name`` may list alternatives, such as ``"query_id|query"``: the first present counts.
    """
    fields = field_name.split("|")

    def name_of(record: Record) -> str:
        present = (field for field in fields if field in record.fields)
        return record.identifier(next(present, fields[0]))

    return once(read_jsonl(path, rejects), name_of, parse, rejects, "id", "keep one of the records")


def by_name(path: Path, parse: Callable[[Record], T], rejects: Rejects) -> dict[str, T]:
    """Parse the members of one JSON object of objects by name; reject repeated names."""
    parsed: dict[str, T] = {}

    def named(member: tuple[str, Record]) -> tuple[str, T]:
        name, record = member
        if name in parsed:
            raise record.error("duplicate id", value=name, fix="keep one of the entries")
        return name, parse(record)

    for name, value in rejects.keep(read_members(path, rejects), named):
        parsed[name] = value
    return parsed


def once(
    records: Iterable[Record],
    name_of: Callable[[Record], str],
    parse: Callable[[Record], T],
    rejects: Rejects,
    noun: str,
    fix: str,
) -> dict[str, T]:
    """Parse records by name; reject those whose name, a ``noun`` to readers, was seen before."""
    parsed: dict[str, T] = {}

    def named(record: Record) -> tuple[str, T]:
        name = name_of(record)
        if name in parsed:
            raise record.error(f"duplicate {noun}", value=name, fix=fix)
        return name, parse(record)

    for name, value in rejects.keep(records, named):
        parsed[name] = value
    return parsed


def paper(record: Record, body: str) -> Text:
    """Return a paper made of ``title`` and the field ``body``; one of them may be empty.

    A body under the name that other files have for it (``abstract``, BEIR's ``text``) is an error.
    """
    other = "abstract" if body == "text" else "text"
    unread = record.fields.get(other)
    if body not in record.fields and isinstance(unread, str) and unread.strip():
        problem = f"paper has text under {other!r}, which is not read here"
        raise record.error(problem, value=unread, fix=f"name it {body!r}")
    text = Text("paper", record.text("title", ""), record.text(body, ""))
    if not (text.title.strip() or text.body.strip()):
        raise record.error(
            f"'title' and {body!r} are both empty",
            fix="add a text, or skip the record with --skip-bad",
        )
    return text


def query_paper(record: Record) -> Text:
    """Return a paper as a query: its title with ``abstract``, else with ``text``, as in a corpus.

    Without title and abstract, ``text`` is its title.
    """
    named = {"title", "abstract"} & record.fields.keys()
    # The hub's copies of BEIR have a title that is empty.
    filled = any(record.text(name, "").strip() for name in sorted(named))
    if filled or (named and "text" not in record.fields):
        return paper(record, "abstract" if "abstract" in named else "text")
    return Text("paper", request(record).title)


def request(record: Record, field: str = "text") -> Text:
    """Return a query that is a text."""
    text = record.text(field)
    if not text.strip():
        raise record.error(f"field {field!r} is empty", fix="write the query or remove it")
    return Text("query", text)


def labelled_paper(record: Record) -> tuple[Text, list[str]]:
    """Return a paper and the ids of its labels."""
    labels = record.strings("labels")
    if not all(map(str.strip, labels)):
        raise record.error("a label is empty", value=labels, fix="name or remove it")
    return paper(record, "abstract"), labels


def label_with_names(record: Record) -> tuple[Text, list[str]]:
    """Return a label's text and all its names: ``name`` and the optional ``synonyms``."""
    name = record.text("name")
    if not name.strip():
        raise record.error("field 'name' is empty", fix="name the label")
    synonyms = record.strings("synonyms", [])
    return Text("label", name, record.text("definition", "")), [name, *synonyms]


def read_pairs(
    paths: Sequence[Path],
    queries: Collection[str],
    rejects: Rejects,
    documents: Collection[str] | None = None,
) -> Judgments:
    """Read the judged pairs of all files as one list.

    Repeated pairs and those whose query or document has no text are rejected; without
    ``documents``, any document may be judged.
    """
    judgments: Judgments = {}

    def parse(record: Record) -> tuple[str, str, int]:
        query, document = record.identifier(QUERY), record.identifier(PAPER)
        fix = "add its text or remove the pair"
        if query not in queries:
            raise record.error("query of a pair has no text", value=query, fix=fix)
        if documents is not None and document not in documents:
            raise record.error("document of a pair has no text", value=document, fix=fix)
        if document in judgments.get(query, {}):
            raise record.error("duplicate pair", value=(query, document), fix=_FIX_LINE)
        return query, document, grade_of(record)

    records = chain.from_iterable(read_judgments(path, rejects) for path in paths)
    for query, document, grade in rejects.keep(records, parse):
        judgments.setdefault(query, {})[document] = grade
    return judgments


def read_targets(
    records: Iterable[Record],
    field: str,
    papers: Collection[str],
    target_of: Callable[[Record], T],
    rejects: Rejects,
) -> dict[str, T]:
    """Read the prediction target of each paper, whose id is in ``field``.

    Repeated papers and papers without text are rejected.
    """

    def name_of(record: Record) -> str:
        name = record.identifier(field)
        if name not in papers:
            raise record.error("paper has no text", value=name, fix="add its text or remove it")
        return name

    return once(records, name_of, target_of, rejects, "paper", "keep one of the lines")


def read_split(
    path: Path, wanted: Sequence[str], papers: Collection[str], rejects: Rejects
) -> dict[str, list[str]]:
    """Return the papers of each wanted split, in the order of ``papers``.

    Raises
    ------
    DataError
        If a wanted split has no paper (the message lists the existing splits); and, through
        ``rejects``, if a paper is unknown, repeated or without a split.
    """

    def name_of(record: Record) -> str:
        name = record.identifier("id")
        if name not in papers:
            raise record.error("paper of the split has no text", value=name, fix=_FIX_LINE)
        return name

    rows = read_table(path, ["id", "split"], rejects)
    splits = once(rows, name_of, lambda row: row.text("split"), rejects, "paper", _FIX_LINE)
    for name in papers:
        if name not in splits:
            rejects.reject(DataError("paper has no split", path=path, value=name, fix="add it"))
    members = {split: [name for name in papers if splits.get(name) == split] for split in wanted}
    for split, ids in members.items():
        if not ids:
            fix = f"use {', '.join(sorted(set(splits.values())))}"
            raise DataError("no paper has this split", path=path, value=split, fix=fix)
    return members
