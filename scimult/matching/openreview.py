"""Read a venue from a folder written by OpenReview's tools.

Its layout (github.com/openreview/openreview-expertise): ``archives/REVIEWER.jsonl`` with the
publications of one reviewer, and ``submissions/*.jsonl``, ``submissions.jsonl`` or
``submissions.json``. A note is ``{"id", "content": {"title", "abstract", ...}}``; fields of API 2
are ``{"value": ...}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_members
from scimult.errors import DataError
from scimult.matching.venue import Publication, Venue, reviewer_id
from scimult.terminal import is_blank
from scimult.types import Text

ARCHIVES = "archives"
_SUBMISSIONS = ("submissions.jsonl", "submissions.json")
_DATES = ("pdate", "cdate", "tcdate", "odate")
_VENUES = ("venueid", "venue")


def read_openreview(folder: Path, rejects: Rejects) -> Venue:
    """Read the folder; a reviewer with an empty file has no publications.

    Raises
    ------
    DataError
        If the folder lacks archives or submissions; through ``rejects``, at a bad note.
    """
    venue = Venue()
    archives = sorted((folder / ARCHIVES).glob("*.jsonl"))
    if not archives:
        fix = f"name the folder that holds {ARCHIVES}/REVIEWER.jsonl and submissions.jsonl"
        raise DataError(f"no {ARCHIVES}/*.jsonl", path=folder, fix=fix)
    for _ in rejects.keep(_submitted(folder, rejects), lambda note: _add_submission(venue, note)):
        pass
    for archive in archives:
        reviewer = reviewer_id(archive.name.removesuffix(".jsonl"))
        if reviewer in venue.reviewers:
            fix = "join the two files of this reviewer"
            raise DataError("second archive of a reviewer", path=archive, value=reviewer, fix=fix)
        venue.reviewers[reviewer] = []
        if not archive.stat().st_size:
            continue
        notes = read_jsonl(archive, rejects)
        for _ in rejects.keep(notes, partial(_add_publication, venue, reviewer)):
            pass
    venue.check(folder, folder, rejects)
    return venue


def _submitted(folder: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the notes of the submissions from whichever of the three layouts exists."""
    inner = sorted((folder / "submissions").glob("*.jsonl"))
    files: Iterable[Path] = inner or [p for name in _SUBMISSIONS if (p := folder / name).is_file()]
    files = list(files)[: len(inner) or 1]
    if not files:
        fix = f"add submissions/*.jsonl or one of {', '.join(_SUBMISSIONS)}"
        raise DataError("no submissions", path=folder, fix=fix)
    for file in files:
        if file.suffix == ".json":  # {id: note}
            yield from (note for _, note in read_members(file, rejects))
        else:
            yield from read_jsonl(file, rejects)


def _add_submission(venue: Venue, note: Record) -> None:
    content = _content(note)
    authors = Record(note.path, note.line, content).identifiers("authorids")
    people = list(map(reviewer_id, authors))
    venue.add_submission(note, note.identifier("id"), _text(note, content), people)


def _add_publication(venue: Venue, reviewer: str, note: Record) -> None:
    content = _content(note)
    venues = (str(content[name]) for name in _VENUES if content.get(name))
    publication = Publication(_text(note, content), _year(note), next(venues, ""))
    venue.add_publication(note, reviewer, note.identifier("id"), publication)


def _year(note: Record) -> int | None:
    dates = (note.fields.get(name) for name in _DATES)
    milliseconds = next((date for date in dates if isinstance(date, (int, float))), None)
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc).year
    except (OverflowError, ValueError, OSError) as error:
        fix = "write the milliseconds since 1970, or remove the date"
        raise note.error("not a date", value=milliseconds, fix=fix) from error


def _content(note: Record) -> dict[str, Any]:
    """Return a note's content, with the values of API 2 unwrapped."""
    content = note.fields.get("content")
    if not isinstance(content, dict):
        fix = 'write {"id": ..., "content": {"title": ..., "abstract": ...}}'
        raise note.error("note has no content", value=note.fields.get("id"), fix=fix)
    return {
        name: value["value"] if isinstance(value, dict) and "value" in value else value
        for name, value in content.items()
    }


def _text(note: Record, content: dict[str, Any]) -> Text:
    fields = Record(note.path, note.line, {k: v or "" for k, v in content.items()})
    title, abstract = (fields.text(name, "").strip() for name in ("title", "abstract"))
    if is_blank(title) and is_blank(abstract):
        fix = "add a text, remove it, or pass --skip-bad"
        value = note.fields.get("id")
        raise note.error("title and abstract are both empty", value=value, fix=fix)
    return Text("paper", title, abstract)
