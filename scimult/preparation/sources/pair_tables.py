"""The pairs of a raw source: citations, references, links and judgments, each a table."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, TextIO

from scimult.data.lines import Record, Rejects
from scimult.preparation.sources.paper_file import create_packed

PairTable = Literal["citations", "references", "links", "judgments"]
Dangling = Literal["drop", "error"]
COLUMNS: Mapping[PairTable, tuple[str, ...]] = {
    "citations": ("citing", "cited"),
    "references": ("citing", "cited"),
    "links": ("query-id", "paper-id", "score", "negative-id"),
    "judgments": ("query-id", "paper-id", "score", "negative-id"),
}
# References of dumps leave the set nearly always, and train nothing.
DANGLING: Mapping[PairTable, Dangling] = {"references": "drop"}
BREAKS = re.compile(r"[\t\r\n]")


class PairTables:
    """Tables of pairs in the making; a pair whose papers are not known yet waits on disk.

    Parameters
    ----------
    folder : Path
        Where the tables go.
    counts : Counter
        Takes what was met.
    rejects : Rejects
        Takes the pairs that name a paper or query without a text, where they are errors.
    dangling : mapping
        For each table whether such pairs are errors or dropped and counted.
    papers, queries : container of str
        Ids of what has been written, and will be until ``finish``.

    Attributes
    ----------
    best : dict
        The highest score of each table that has been written; 1 where pairs have no score.
    """

    def __init__(
        self,
        folder: Path,
        counts: Counter[str],
        rejects: Rejects,
        dangling: Mapping[PairTable, Dangling],
        papers: Container[str],
        queries: Container[str],
    ) -> None:
        self.best: dict[PairTable, float] = {}
        self._folder, self._counts, self._rejects = folder, counts, rejects
        self._dangling = {**DANGLING, **dangling}
        self._papers, self._queries = papers, queries
        self._open = ExitStack()
        self._files: dict[PairTable, TextIO] = {}
        self._waiting: dict[PairTable, TextIO] = {}
        self._origins: dict[Path, int] = {}

    def add(self, table: PairTable, record: Record, values: tuple[str, ...]) -> None:
        """Write a pair, or let it wait.

        Raises
        ------
        DataError
            If an id cannot stand in a table.
        """
        if values[0] == values[1] and table != "judgments":
            self._counts["pairs of a paper with itself"] += 1
        elif self._known(table, values):
            self._write(table, values)
        else:
            for value in values:
                check_id(record, value)
            if table not in self._waiting:
                waiting = create_packed(self._folder / f"waiting.{table}.gz")
                self._waiting[table] = self._open.enter_context(waiting)
            origin = self._origins.setdefault(record.path, len(self._origins))
            self._waiting[table].write("\t".join((str(origin), str(record.line), *values)) + "\n")

    def finish(self) -> None:
        """Write the pairs that waited and have their papers by now; close all files.

        Raises
        ------
        DataError
            If others are errors, with their number; unless bad records are skipped.
        """
        for table in self._waiting:
            self._write_waiting(table)
        self.close()

    def close(self) -> None:
        """Close the files as they are."""
        self._open.close()

    def _known(self, table: PairTable, values: Sequence[str]) -> bool:
        queries = self._queries if table == "judgments" else self._papers
        papers = (value for value in (values[1], *values[3:]) if value)
        return values[0] in queries and all(paper in self._papers for paper in papers)

    def _write(self, table: PairTable, values: Sequence[str]) -> None:
        if table not in self._files:
            file = create_packed(self._folder / f"{table}.tsv.gz")
            self._files[table] = self._open.enter_context(file)
            # Most sources give no hard negatives of single pairs: the last column.
            file.write("\t".join(COLUMNS[table][: len(values)]) + "\n")
        self._files[table].write("\t".join(values) + "\n")
        self._counts[table] += 1
        score = float(values[2]) if len(values) > 2 else 1
        self.best[table] = max(score, self.best.get(table, score))

    def _write_waiting(self, table: PairTable) -> None:
        """Write the waiting pairs whose papers have come; drop, reject or refuse the others."""
        self._waiting[table].close()
        path = self._folder / f"waiting.{table}.gz"
        origins = list(self._origins)
        drop = self._dangling.get(table) == "drop"
        first: tuple[Record, str] | None = None
        lost = 0
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                origin, number, *values = line.rstrip("\n").split("\t")
                if self._known(table, values):
                    self._write(table, values)
                    continue
                lost += 1
                if drop:
                    continue
                record = Record(origins[int(origin)], int(number), {})
                what, value = self._missing(table, values)
                if self._rejects.skip_bad:
                    problem = f"pair names a {what} without a text"
                    fix = f"add its text, or drop and count such pairs with dangling.{table}=drop"
                    self._rejects.reject(record.error(problem, value=value, fix=fix))
                elif first is None:
                    first = record, value
        path.unlink()
        if first is not None:
            record, value = first
            raise record.error(
                f"{lost:,} of {lost + self._counts[table]:,} {table} name a paper or query "
                "without a text; this is the first",
                value=value,
                fix=f"add the texts, or leave these pairs out and count them with "
                f"dangling.{table}=drop",
            )
        if lost:
            self._counts[f"{table} without a text"] += lost

    def _missing(self, table: PairTable, values: Sequence[str]) -> tuple[str, str]:
        """Return what the first unknown id of a pair should be, and the id."""
        if table == "judgments" and values[0] not in self._queries:
            return "query", values[0]
        papers = values[1:2] if table == "judgments" else values[:2]
        return "paper", next(id_ for id_ in (*papers, *values[3:]) if id_ not in self._papers)


def check_id(record: Record, identifier: str) -> None:
    """Refuse an id that would break a table.

    Raises
    ------
    DataError
        If it holds a tab or a line break.
    """
    if BREAKS.search(identifier):
        fix = "remove tabs and line breaks from ids"
        raise record.error("id holds a tab or a line break", value=identifier, fix=fix)
