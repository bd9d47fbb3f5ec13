"""Helpers for sources with papers inside their rows: triples and judged candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scimult.data.records import Record
from scimult.preparation.sources.raw import RawSource

ID_FIELDS = ("corpus_id", "doc_id", "paper_id", "sha", "id")


def inner(record: Record, name: str) -> Record:
    """Return the object in a field, as a record with the same location."""
    value = record.fields.get(name)
    if not isinstance(value, Mapping):
        raise record.error(
            f"field {name!r} is not an object",
            value=value,
            fix=f"write {name!r} as an object with title and abstract",
        )
    return Record(record.path, record.line, dict(value))


def inner_list(record: Record, name: str) -> list[Record]:
    """Return the objects in a list field, as records with the same location."""
    values: Any = record.fields.get(name)
    if not isinstance(values, Sequence) or not all(isinstance(v, Mapping) for v in values):
        raise record.error(
            f"field {name!r} is not a list of objects",
            value=values,
            fix=f"write {name!r} as a list of objects",
        )
    return [Record(record.path, record.line, dict(value)) for value in values]


def paper_id(paper: Record) -> str:
    """Return the id of a paper, from the first of ``ID_FIELDS`` that is filled."""
    for name in ID_FIELDS:
        if paper.fields.get(name) not in (None, ""):
            return paper.identifier(name)
    fix = f"add one of {', '.join(ID_FIELDS)}"
    raise paper.error("paper has no id", value=sorted(paper.fields), fix=fix)


def write_paper(paper: Record, raw: RawSource) -> str:
    """Write a paper inside a row; return its id.

    Unknown years, venues and lists of authors may be empty strings, as on the hub.
    """
    identifier = paper_id(paper)
    has_year, has_authors = (bool(paper.fields.get(name)) for name in ("year", "author_names"))
    raw.titled(
        paper,
        identifier,
        authors=[name for name in paper.strings("author_names") if name] if has_authors else (),
        venue=paper.text("venue", ""),
        year=int(paper.number("year")) if has_year else None,
    )
    return identifier


def write_triple(record: Record, raw: RawSource) -> None:
    """Write one row ``{query, pos, neg}``: the query cites pos but not neg.

    The negative belongs to this positive only, as in the original training data. If one of the
    three is unusable, the whole row is left out.
    """
    query, positive, negative = (
        write_paper(inner(record, name), raw) for name in ("query", "pos", "neg")
    )
    raw.counts["triples"] += 1
    raw.link(record, query, positive, 1, negative)


def scored_papers(record: Record, raw: RawSource) -> list[tuple[str, float]]:
    """Write the papers of a row's ``candidates``; return their ids and scores.

    A candidate without a text or a score is rejected on its own.
    """
    candidates = inner_list(record, "candidates")
    return list(raw.rejects.keep(candidates, lambda c: (write_paper(c, raw), c.number("score"))))


def write_candidates(record: Record, raw: RawSource) -> None:
    """Write one row ``{query, candidates}``: a paper and scored papers."""
    query = write_paper(inner(record, "query"), raw)
    raw.counts["queries"] += 1
    for paper, score in scored_papers(record, raw):
        raw.link(record, query, paper, score)
