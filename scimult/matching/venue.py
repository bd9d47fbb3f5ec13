"""Submissions, reviewers and their publications, from two tables."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scimult.data.importers import read_papers
from scimult.data.importers.names import first_name_first
from scimult.data.importers.paper import ImportedPaper
from scimult.data.packed import open_binary
from scimult.data.records import Record, Rejects
from scimult.data.tables import read_delimited
from scimult.errors import DataError
from scimult.terminal import is_blank, trimmed
from scimult.types import Text


@dataclass
class Publication:
    """A reviewer's paper: its text, and what determines its weight."""

    text: Text
    year: int | None = None
    venue: str = ""


@dataclass
class Venue:
    """Submissions, and reviewers with the ids of their publications.

    ``authors`` are reviewer ids by submission; submissions without any are left out. A publication
    of several reviewers occurs once. ``counts`` are of irregularities in the input.
    """

    submissions: dict[str, Text] = field(default_factory=dict)
    authors: dict[str, list[str]] = field(default_factory=dict)
    publications: dict[str, Publication] = field(default_factory=dict)
    reviewers: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add_submission(self, record: Record, name: str, text: Text, authors: list[str]) -> None:
        """Add a submission; raise a DataError if its id is taken."""
        if name in self.submissions:
            fix = "remove the duplicate"
            raise record.error("duplicate submission", value=name, fix=fix)
        self.submissions[name] = text
        if authors:
            self.authors[name] = authors

    def add_publication(
        self, record: Record, reviewer: str, name: str, publication: Publication
    ) -> None:
        """Add a reviewer's publication; of two copies, the one with an abstract is kept.

        Raises
        ------
        DataError
            If another publication has its id: rows numbered anew for each reviewer would be
            taken for one paper.
        """
        known = self.publications.get(name)
        if known is not None and (titles := two_titles(known.text.title, publication.text.title)):
            fix = "give every publication an id of its own, and the same title wherever it stands"
            problem = f"two publications have the id {name!r}"
            raise record.error(problem, value=titles, fix=fix)
        if known is None or (publication.text.body and not known.text.body):
            self.publications[name] = publication
        papers = self.reviewers.setdefault(reviewer, [])
        if name in papers:
            self.counts["publications of a reviewer repeated"] += 1
        else:
            papers.append(name)

    def check(self, submitted: Path, published: Path, rejects: Rejects) -> None:
        """Check that there is something to match, read from these paths.

        Raises
        ------
        DataError
            If there is no submission, or no reviewer with a publication.
        """
        for kind, papers, path in (
            ("submission", self.submissions, submitted),
            ("publication", self.publications, published),
        ):
            if not papers:
                fix = "check that it is the right file"
                if rejects.counts:
                    fix += "; without --skip-bad, errors are shown"
                raise DataError(f"no {kind} is left", path=path, fix=fix)


def read_tables(papers: Path, publications: Path, rejects: Rejects) -> Venue:
    """Read submissions, and publications with a column ``reviewer``, in any supported format.

    Submissions may list their authors' reviewer ids in ``authors``, separated by semicolons or
    commas.

    Raises
    ------
    DataError
        If a file does not exist or lacks a column, or a publication has the id of a submission
        with another title: files numbered apart would make its reviewer an author. Through
        ``rejects``, at a bad row.
    """
    venue = Venue()
    for paper in read_papers([papers], rejects=rejects):
        record = Record(*paper.location, {})
        text = Text("paper", paper.title, paper.abstract)
        try:
            venue.add_submission(record, paper.id, text, list(map(reviewer_id, paper.authors)))
        except DataError as error:
            rejects.reject(error)
    for record, reviewer, paper in _published(publications, rejects):
        text = Text("paper", paper.title, paper.abstract)
        publication = Publication(text, paper.year, paper.venue)
        submitted = venue.submissions.get(paper.id)
        if submitted is not None and (titles := two_titles(submitted.title, text.title)):
            fix = "give different papers different ids, and a paper one title in both files"
            problem = f"a submission and a publication have the id {paper.id!r}"
            raise record.error(problem, value=titles, fix=fix)
        try:
            venue.add_publication(record, reviewer, paper.id, publication)
        except DataError as error:
            rejects.reject(error)
    venue.check(papers, publications, rejects)
    # Readers of some tables put given names first; ids stay as they are.
    reviewer_of = {reviewer_id(first_name_first(name)): name for name in venue.reviewers}
    reviewer_of |= {name: name for name in venue.reviewers}
    venue.authors = {
        name: [one for author in authors for one in _reviewers_in(author, reviewer_of)]
        for name, authors in venue.authors.items()
    }
    return venue


def _published(publications: Path, rejects: Rejects) -> Iterator[tuple[Record, str, ImportedPaper]]:
    """Yield the publications of a table with their reviewers.

    Rows without one wait for a row with one, or the end: there the reader raises its own error if
    no row has the column.
    """
    waiting: list[DataError] = []
    for paper in read_papers([publications], columns={"reviewer": "reviewer"}, rejects=rejects):
        value = paper.extra["reviewer"]
        reviewer = "" if value is None else reviewer_id(str(value))
        record = Record(*paper.location, {})
        if not reviewer or isinstance(value, (list, dict)):
            problem = "column 'reviewer' is empty" if not reviewer else "not a reviewer's id"
            fix = "write one reviewer per row, and a row for each who wrote it, or remove the row"
            waiting.append(record.error(problem, value=value or paper.id, fix=fix))
            continue
        while waiting:
            rejects.reject(waiting.pop(0))
        yield record, reviewer, paper
    for error in waiting:
        rejects.reject(error)


def reviewer_id(name: str) -> str:
    """Return a reviewer's id as it is compared: NFC, with single spaces, none around it.

    A conflict of interest must not go unseen because a file system decomposed the accents of a
    file name, or a spreadsheet left a space behind a name, which may be one without width.
    """
    return unicodedata.normalize("NFC", " ".join(trimmed(name).split()))


def two_titles(one: str, other: str) -> list[str]:
    """Return two titles if neither is blank, and they are of different papers."""
    titles = [title for title in (one, other) if not is_blank(title)]
    return titles if len(set(map(_letters, titles))) > 1 else []


def _letters(title: str) -> str:
    """Return what two copies of one title share."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", title).casefold()))


def _reviewers_in(author: str, reviewer_of: Mapping[str, str]) -> list[str]:
    """Return an author, or several that a table separates by commas instead of semicolons."""
    if author in reviewer_of:
        return [reviewer_of[author]]
    names = map(str.strip, author.split(","))
    return [reviewer_of.get(name, name) for name in names]


def read_conflicts(path: Path, venue: Venue, rejects: Rejects) -> set[tuple[str, str]]:
    """Read pairs that must not be matched: a table of submission and reviewer without a header.

    OpenReview's constraints have a third value: -1 is a conflict, 0 is none.

    Raises
    ------
    DataError
        Through ``rejects``: at unknown ids or other values.
    """
    delimiter = "\t" if path.suffix == ".tsv" else ","
    width = _columns(path, delimiter)
    header = ("submission", "reviewer", "value")[:width]
    rows = read_delimited(path, delimiter, rejects, header=header)

    def parse(row: Record) -> tuple[str, str] | None:
        pair = row.identifier("submission"), reviewer_id(row.identifier("reviewer"))
        known = (venue.submissions.keys(), venue.reviewers.keys())
        for kind, name, ids in zip(("submission", "reviewer"), pair, known, strict=True):
            if name not in ids:
                header = "leave out a header, " if row.line == 1 else ""
                fix = f"{header}correct the id, or pass --skip-bad"
                raise row.error(f"conflict with an unknown {kind}", value=name, fix=fix)
        value = row.fields.get("value", "-1").strip()
        if value not in ("-1", "0", "-1.0", "0.0"):
            raise row.error("value is neither -1 nor 0", value=value, fix="write -1 for a conflict")
        return pair if value.startswith("-1") else None

    return {pair for pair in rejects.keep(rows, parse) if pair is not None}


def _columns(path: Path, delimiter: str) -> int:
    """Return the number of columns in the first filled line of a conflict table."""
    try:
        # Other encodings are refused when the rows are read, with the line.
        with io.TextIOWrapper(open_binary(path), "utf-8-sig", errors="replace") as file:
            first = next((row for row in enumerate(file, start=1) if row[1].strip()), None)
    except (OSError, EOFError) as error:
        raise DataError("cannot read file", path=path, fix="check the path") from error
    fix = "write submission,reviewer on each line, or submission,reviewer,-1"
    if first is None:
        fix += "; leave the file out if there are no conflicts"
        raise DataError("conflict table is empty", path=path, fix=fix)
    line, width = first[0], len(next(csv.reader([first[1]], delimiter=delimiter)))
    if width not in (2, 3):
        raise DataError(f"conflict table has {width} columns", path=path, line=line, fix=fix)
    return width
