"""The raw files that a converter writes: papers, labels, queries and pairs, as prepare reads them.

Everything is written as it comes. Only the ids of papers, labels and answered queries are kept in
memory (as prepare itself does); a pair whose papers are not known yet waits on disk, and so does
what a repeated paper adds.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from scimult.data.lines import Record, Rejects
from scimult.data.prepare_config import SourceConfig
from scimult.data.sources.paper_file import PaperFile, create_packed
from scimult.errors import DataError
from scimult.types import Text

BREAKS = re.compile(r"[\t\r\n]")
TABLES = {
    "citations": ("citing", "cited"),
    "references": ("citing", "cited"),
    "links": ("query-id", "paper-id", "score"),
    "judgments": ("query-id", "paper-id", "score"),
}


class RawSource:
    """One source in the making; ``finish`` returns its configuration for prepare.

    Parameters
    ----------
    folder : path
        Where the files go.
    name : str
        Name of the source; also the sub-folder.
    rejects : Rejects
        Takes bad records, and pairs that name a paper without a text.
    dangling_is_normal : bool
        Pairs with unknown papers are only counted, because the public data has them by design.

    Attributes
    ----------
    counts : Counter
        What was met and written.
    notes : list of str
        What the user should know besides.
    """

    def __init__(
        self, folder: Path, name: str, rejects: Rejects, *, dangling_is_normal: bool = False
    ) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self._rejects = rejects
        self._dangling_is_normal = dangling_is_normal
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._open = ExitStack()
        self._files: dict[str, TextIO] = {}
        self._waiting: dict[str, TextIO] = {}
        self._origins: dict[Path, int] = {}
        self._papers = PaperFile(self._folder / file_name("papers"), self.counts)
        self._open.callback(self._papers.close)
        self._labels: set[str] = set()
        self._queries: set[str] = set()

    def __enter__(self) -> RawSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def has_paper(self, identifier: str) -> bool:
        """Return whether the paper has been written."""
        return identifier in self._papers

    def has_label(self, identifier: str) -> bool:
        """Return whether the label has been written."""
        return identifier in self._labels

    def has_query(self, identifier: str) -> bool:
        """Return whether the query has been written."""
        return identifier in self._queries

    def paper(
        self,
        record: Record,
        identifier: str,
        title: str,
        abstract: str,
        *,
        authors: Sequence[str] = (),
        venue: str = "",
        year: int | None = None,
        doi: str = "",
        labels: Sequence[str] = (),
    ) -> None:
        """Write a paper; one whose id is known is united with what was written.

        Its labels need not be known yet: write those that papers define after the paper, for
        one that is refused must not leave labels that nothing has.

        Raises
        ------
        DataError
            If title and abstract are both empty, or the id cannot stand in a table.
        """
        self._check_id(record, identifier)
        if identifier not in self._papers and not (title.strip() or abstract.strip()):
            fix = "give it a text, remove it, or pass --skip-bad"
            raise record.error("title and abstract are both empty", value=identifier, fix=fix)
        paper: dict[str, Any] = {"id": identifier, "title": title, "abstract": abstract}
        extra = {
            "authors": list(authors),
            "venue": venue,
            "year": year,
            "doi": doi,
            "labels": list(labels),
        }
        paper.update({name: value for name, value in extra.items() if value not in ([], "", None)})
        self._papers.add(record, paper)

    def label(self, record: Record, identifier: str, name: str, definition: str = "") -> None:
        """Write a label unless its id is known.

        Raises
        ------
        DataError
            If the name is empty.
        """
        if identifier in self._labels:
            self.counts["labels repeated"] += 1
            return
        if not name.strip():
            fix = "give it a name, remove it, or pass --skip-bad"
            raise record.error("name of the label is empty", value=identifier, fix=fix)
        self._write("labels", {"id": identifier, "name": name, "definition": definition})
        self._labels.add(identifier)
        self.counts["labels"] += 1
        self.counts["labels without definition"] += not definition.strip()

    def labels_by_name(self, record: Record, names: Iterable[str]) -> None:
        """Write the labels that papers define by carrying them: a label's name is its id."""
        for name in names:
            if name not in self._labels:
                self.label(record, name, name)

    def query(self, record: Record, identifier: str, text: str) -> None:
        """Write a query unless its id is known. Write only queries that have a positive.

        Raises
        ------
        DataError
            If the text is empty, or the id cannot stand in a table.
        """
        self._check_id(record, identifier)
        if identifier in self._queries:
            self.counts["queries repeated"] += 1
            return
        if not text.strip():
            fix = "give it a text, remove it, or pass --skip-bad"
            raise record.error("query is empty", value=identifier, fix=fix)
        self._write("queries", {"id": identifier, "text": text})
        self._queries.add(identifier)
        self.counts["queries"] += 1

    def citation(self, record: Record, citing: str, cited: str) -> None:
        """Write a citation that makes a training pair."""
        self._pair("citations", record, (citing, cited))

    def reference(self, record: Record, citing: str, cited: str) -> None:
        """Write a citation that serves mining alone."""
        self._pair("references", record, (citing, cited))

    def link(self, record: Record, query: str, paper: str, score: float) -> None:
        """Write a judged pair of papers."""
        self._pair("links", record, (query, paper, f"{score:g}"))

    def judgment(self, record: Record, query: str, paper: str, score: float) -> None:
        """Write a judged pair of query and paper."""
        self._pair("judgments", record, (query, paper, f"{score:g}"))

    def finish(self, **choices: Any) -> SourceConfig:
        """Write the pairs that waited for their papers, close all files, describe the source.

        Parameters
        ----------
        **choices
            Further fields of ``SourceConfig``.

        Raises
        ------
        DataError
            If pairs name papers without a text (with their number), unless they are expected or
            bad records are skipped; or if nothing to train on is left.
        """
        for table in list(self._waiting):
            self._write_waiting(table)
        self.notes.extend(self._papers.finish())
        self._open.close()
        written = [name for name in ("papers", *self._files) if self.counts[name]]
        files = {name: f"{self.name}/{file_name(name)}" for name in written}
        if "papers" not in files:
            raise DataError(
                f"no paper is left in {self.name!r}",
                value=dict(self.counts),
                fix="check that the folder holds this data set",
            )
        return SourceConfig(name=self.name, **files, **choices)

    def _check_id(self, record: Record, identifier: str) -> None:
        if BREAKS.search(identifier):
            fix = "remove tabs and line breaks from ids"
            raise record.error("id holds a tab or a line break", value=identifier, fix=fix)

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        self._file(name).write(json.dumps(fields, ensure_ascii=False) + "\n")

    def _file(self, name: str) -> TextIO:
        if name not in self._files:
            self._files[name] = self._create(file_name(name))
            if name in TABLES:
                self._files[name].write("\t".join(TABLES[name]) + "\n")
        return self._files[name]

    def _create(self, name: str) -> TextIO:
        return self._open.enter_context(create_packed(self._folder / name))

    def _pair(self, table: str, record: Record, values: tuple[str, ...]) -> None:
        if values[0] == values[1] and table != "judgments":
            self.counts["pairs of a paper with itself"] += 1
        elif self._known(table, values):
            self._file(table).write("\t".join(values) + "\n")
            self.counts[table] += 1
        else:
            for value in values[:2]:
                self._check_id(record, value)
            if table not in self._waiting:
                self._waiting[table] = self._create(f"waiting.{table}.gz")
            origin = self._origins.setdefault(record.path, len(self._origins))
            self._waiting[table].write("\t".join((str(origin), str(record.line), *values)) + "\n")

    def _known(self, table: str, values: Sequence[str]) -> bool:
        queries = self._queries if table == "judgments" else self._papers
        return values[0] in queries and values[1] in self._papers

    def _write_waiting(self, table: str) -> None:
        """Write the waiting pairs whose papers have come; count or reject the others."""
        self._waiting[table].close()
        path = self._folder / f"waiting.{table}.gz"
        origins = list(self._origins)
        dangling: list[DataError] = []
        lost = 0
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                origin, number, *values = line.rstrip("\n").split("\t")
                if self._known(table, values):
                    self._file(table).write("\t".join(values) + "\n")
                    self.counts[table] += 1
                    continue
                lost += 1
                if self._dangling_is_normal or table == "references":
                    continue
                error = self._dangling(table, Record(origins[int(origin)], int(number), {}), values)
                if self._rejects.skip_bad:
                    self._rejects.reject(error)
                elif not dangling:
                    dangling.append(error)
        path.unlink()
        if dangling:
            raise DataError(
                f"{lost:,} {table} name a paper or query without a text; {dangling[0]}",
                fix="download the texts again, or leave these pairs out with --skip-bad",
            )
        if lost:
            self.counts[f"{table} without a text"] += lost

    def _dangling(self, table: str, record: Record, values: Sequence[str]) -> DataError:
        first = values[0] not in (self._queries if table == "judgments" else self._papers)
        return record.error(
            f"pair names a {'query' if first and table == 'judgments' else 'paper'} without a text",
            value=values[0] if first else values[1],
            fix="add its text or pass --skip-bad",
        )


def file_name(name: str) -> str:
    """Return the name of a raw file."""
    return f"{name}.tsv.gz" if name in TABLES else f"{name}.jsonl.gz"


def text_id(*parts: str) -> str:
    """Return an id for a text that has none: the same text has the same id."""
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=10).hexdigest()


def split_text(text: str, separator: str | None) -> Text:
    """Return a paper from one string; without the separator all of it is the body."""
    if separator is None or separator not in text:
        return Text("paper", "", text.strip())
    title, _, body = text.partition(separator)
    return Text("paper", title.strip(), body.strip())


def distinct(values: Iterable[str]) -> list[str]:
    """Return values in order of their first appearance."""
    return list(dict.fromkeys(values))
