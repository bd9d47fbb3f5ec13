"""Write the raw files of a source: papers, labels, queries and pairs, as prepare reads them.

Everything is written as it comes. Memory holds only the ids of papers, labels and queries; pairs
are joined with their papers at the end, and records of repeated papers wait on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

from scimult.data.importers.paper import ImportedPaper, text_id
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_members, read_rows
from scimult.errors import DataError
from scimult.preparation.config import Dangling, PairTable, SourceConfig
from scimult.progress import progress
from scimult.terminal import is_one_line, tally
from scimult.types import Text

T = TypeVar("T")
Makes = Literal["labels", "citations", "links", "judgments"]
Written = Literal["papers", "labels", "queries", "citations", "references", "links", "judgments"]
_IDS: Mapping[Written, Sequence[str]] = {
    **dict.fromkeys(("papers", "labels", "queries"), ("id",)),
    **dict.fromkeys(("citations", "references"), ("citing", "cited")),
    **dict.fromkeys(("links", "judgments"), ("query-id", "paper-id")),
}
_SINGULAR = {
    "labels": "paper with a label",
    "citations": "citation",
    "links": "link",
    "judgments": "judgment",
}
_RENAMED = "labels with more than one name"
# Both join papers with papers.
ONE_TASK = "citations and links of one source would train the same task"
TWO_SOURCES = (
    "convert them under two names (name=...) and list both sources with one namespace, "
    "or keep the citations for mining alone, as references (papers.cited=references)"
)


class RawSource:
    """Writer of one source; ``finish`` returns its configuration for prepare.

    ``dangling`` says, for each pair table, whether pairs that name an unknown paper are errors or
    dropped and counted; by default references are dropped. ``rejects`` collects bad records, among
    them these pairs. ``counts`` are of what was read and written, ``notes`` are further remarks for
    the user.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        rejects: Rejects,
        dangling: Mapping[PairTable, Dangling] | None = None,
    ) -> None:
        # Imported here because listing the sources needs neither Arrow nor DuckDB.
        from scimult.data.shards import LABELS, QUERIES, Shard
        from scimult.preparation.sources.pair_tables import PairTables
        from scimult.preparation.sources.paper_file import PaperFile

        self.name = name
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.rejects = rejects
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._open = ExitStack()
        self._files = {
            "labels": Shard(self._folder / "labels.parquet", LABELS),
            "queries": Shard(self._folder / "all.queries.parquet", QUERIES),
        }
        self._labels: dict[str, str] = {}
        self._queries: set[str] = set()
        self._papers = PaperFile(self._folder / "papers.parquet", self.counts)
        self._pairs = PairTables(self._folder, self.counts, rejects, dangling or {})
        for close in (self._papers.close, self._pairs.close):
            self._open.callback(close)
        for file in self._files.values():
            self._open.callback(file.close)

    def __enter__(self) -> RawSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def each(self, records: Iterable[T], handle: Callable[[T], object]) -> None:
        """Handle every record, showing progress; reject records on which ``handle`` raises."""
        for _ in progress(self.rejects.keep(records, handle), "rows", unit="row"):
            pass

    def each_row(self, path: Path, handle: Callable[[Record], object], **layout: Any) -> None:
        """Handle every row of a file; see ``each`` and ``rows.read_rows``, also for the layout."""
        self.each(read_rows(path, self.rejects, **layout), handle)

    def write(
        self, what: Written, records: Iterable[Record], id: str = "id", body: str = "abstract"
    ) -> None:
        """Write every record as one of ``what``; see ``each``.

        Fields have the names that prepare reads, but for the ``id`` and a paper's ``body``; the
        score of a judged pair defaults to 1.
        """

        def add(record: Record) -> None:
            ids = [record.identifier(id if name == "id" else name) for name in _IDS[what]]
            first, last = ids[0], ids[-1]
            match what:
                case "papers":
                    self.titled(record, first, body)
                case "labels":
                    self.label(record, first, record.text("name"), record.text("definition", ""))
                case "queries":
                    self.query(record, first, record.text("text"))
                case "citations" | "references":
                    self.edge(what, record, first, last)
                case "links":
                    self.link(record, first, last, record.number("score", 1))
                case "judgments":
                    self.judgment(record, first, last, record.number("score", 1))

        self.each(records, add)

    def each_member(self, path: Path, handle: Callable[[str, Record], object]) -> None:
        """Handle every member of a big JSON object by name and value; see ``each``."""
        self.each(read_members(path, self.rejects), lambda member: handle(*member))

    def has_paper(self, identifier: str) -> bool:
        """Return whether the paper has been written."""
        return identifier in self._papers

    def has_label(self, identifier: str) -> bool:
        """Return whether the label has been written."""
        return identifier in self._labels

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
        target: str | float | None = None,
    ) -> None:
        """Write a paper, or merge it with earlier records of the same id.

        Its labels need not be known yet: write labels that papers define after the paper, so
        that a rejected paper leaves no unused labels.

        Raises
        ------
        DataError
            If title and abstract are both empty, or the id or year is invalid.
        """
        check_id(record, identifier)
        if year is not None:
            year = Record(record.path, record.line, {"year": year}).integer("year")
        if identifier not in self._papers and not (title.strip() or abstract.strip()):
            fix = "give it a text, remove it, or pass --skip-bad"
            raise record.error("title and abstract are both empty", value=identifier, fix=fix)
        paper: dict[str, Any] = {"id": identifier, "title": title, "abstract": abstract}
        extra = {
            "authors": list(authors),
            "venue": venue,
            "year": year,
            "doi": doi,
            "labels": distinct(map(str.strip, labels)),
            "target": target,
        }
        paper.update({name: value for name, value in extra.items() if value not in ([], "", None)})
        self._papers.add(record, paper)

    def imported(self, record: Record, paper: ImportedPaper, labels: Sequence[str] = ()) -> None:
        """Write a paper that the importers read, without its references; see ``paper``."""
        self.paper(
            record,
            paper.id,
            paper.title,
            paper.abstract,
            authors=paper.authors,
            venue=paper.venue,
            year=paper.year,
            doi=paper.doi,
            labels=labels,
        )

    def titled(self, record: Record, identifier: str, body: str = "abstract", **more: Any) -> None:
        """Write a paper with the fields ``title`` and ``body`` of a record; see ``paper``."""
        title, text = record.text("title", ""), record.text(body, "")
        self.paper(record, identifier, title, text, **more)

    def label(self, record: Record, identifier: str, name: str, definition: str = "") -> None:
        """Write a label unless its id is known."""
        known = self._labels.get(identifier)
        if known is not None:
            self.counts["labels repeated"] += 1
            if known != name.strip():
                self.counts[_RENAMED] += 1
                if self.counts[_RENAMED] == 1:
                    example = f"{record.path}:{record.line}: {name!r} for {identifier!r}"
                    self.notes.append(f"{_RENAMED}, such as {example}, which keeps {known!r}")
            return
        if not name.strip():
            fix = "give it a name, remove it, or pass --skip-bad"
            raise record.error("name of the label is empty", value=identifier, fix=fix)
        self._files["labels"].add({"id": identifier, "name": name, "definition": definition})
        self._labels[identifier] = name.strip()
        self.counts["labels"] += 1
        self.counts["labels without definition"] += not definition.strip()

    def labels_by_name(self, record: Record, names: Iterable[str]) -> None:
        """Write labels that are defined only by papers carrying them: the name is the id."""
        for name in map(str.strip, names):
            if name not in self._labels:
                self.label(record, name, name)

    def query(self, record: Record, identifier: str, text: str) -> None:
        """Write a query unless its id is known; ``finish`` leaves out those without a positive."""
        check_id(record, identifier)
        if identifier in self._queries:
            self.counts["queries repeated"] += 1
            return
        if not text.strip():
            fix = "give it a text, remove it, or pass --skip-bad"
            raise record.error("query is empty", value=identifier, fix=fix)
        self._files["queries"].add({"id": identifier, "text": text})
        self._queries.add(identifier)
        self.counts["queries"] += 1

    def question(self, record: Record, text: str) -> str:
        """Write a query identified by its text, unless it is known; return its id."""
        identifier = text_id(text.strip())
        if identifier not in self._queries:
            self.query(record, identifier, text)
        return identifier

    def edge(
        self, table: Literal["citations", "references"], record: Record, citing: str, cited: str
    ) -> None:
        """Write a citation: for training pairs, or as a reference for mining only."""
        self._pairs.add(table, record, citing, cited)

    def link(
        self, record: Record, query: str, paper: str, score: float, negative: str | None = None
    ) -> None:
        """Write a judged pair of papers.

        A positive may have its own hard negative. A source passes ``negative`` for all of its
        pairs, empty if there is none, or for none of them.
        """
        if negative in (query, paper):
            negative = self._no_negative()
        self._pairs.add("links", record, query, paper, score, negative)

    def judgment(
        self, record: Record, query: str, paper: str, score: float, negative: str | None = None
    ) -> None:
        """Write a judged pair of query and paper; ``negative`` as in ``link``."""
        if negative == paper:
            negative = self._no_negative()
        self._pairs.add("judgments", record, query, paper, score, negative)

    def _no_negative(self) -> str:
        """Count a hard negative that is part of its own pair, as some released data have."""
        self.counts["hard negatives that are in their own pair"] += 1
        return ""

    def finish(self, makes: Sequence[Makes] = (), **choices: Any) -> SourceConfig:
        """Write all pairs whose papers are known, close the files, and return the configuration.

        ``makes`` is what the source must contain, in addition to papers: it is an error if nothing
        is left of it. ``choices`` are further fields of ``SourceConfig``; those of absent parts are
        ignored.
        """
        self.notes.extend(self._papers.finish())
        for file in self._files.values():
            file.close()
        threshold: float = choices.get("score_threshold", 1)
        self.notes.extend(self._pairs.finish(threshold))
        papers = self.counts["papers"]
        if not papers:
            raise self._nothing_left("no paper is left")
        for what in makes:
            if what == "labels":
                best = threshold if self._papers.have_labels else None
            else:
                best = self._pairs.best.get(what)
            if best is None:
                raise self._nothing_left(f"no {_SINGULAR[what]} is left")
            if best < threshold and what in ("links", "judgments"):
                raise self._nothing_left(f"no {_SINGULAR[what]} has a score of {threshold:g}")
        if {"citations", "links"} <= self._pairs.best.keys():
            raise DataError(ONE_TASK, value=self.name, fix=TWO_SOURCES)
        if self.counts["papers with empty abstract"] == papers:
            self.notes.append("every abstract is empty: models see only titles")
        return self._config(choices)

    def _config(self, choices: Mapping[str, Any]) -> SourceConfig:
        """Return the configuration of the written source."""
        texts = [name for name, file in self._files.items() if file.count]
        if "queries" in texts and "judgments" not in self._pairs.best:
            texts.remove("queries")
        if "labels" in texts and not self._papers.have_labels:
            texts.remove("labels")
            self.notes.append("no paper has a label: the labels train nothing")
        written = ("papers", *texts, *self._pairs.best)
        files = {name: f"{self.name}/{name}.parquet" for name in written}
        needs = {"max_pairs_per_label": {"labels"}, "score_threshold": {"links", "judgments"}}
        applicable = {
            name: value
            for name, value in choices.items()
            if name not in needs or needs[name] & files.keys()
        }
        return SourceConfig(name=self.name, **files, **applicable)

    def _nothing_left(self, problem: str) -> DataError:
        """Return an error that reports what was read and what was left out."""
        left_out = self.rejects.because()
        fix = "check that the folder holds the complete data set"
        if left_out:
            fix = "correct the records left out; run without --skip-bad to stop at the first"
        read = tally(self.counts) or "nothing"
        return DataError(f"{problem} in {self.name!r}; read: {read}{left_out}", fix=fix)


def check_id(record: Record, identifier: str) -> None:
    """Check that an id can be written to a table."""
    if not identifier.strip():
        raise record.error("id is empty", value=identifier, fix="give every record an id")
    if not is_one_line(identifier):
        problem = "id holds a line break or control character"
        raise record.error(problem, value=identifier, fix="remove it")


def split_text(text: str, separator: str | None) -> Text:
    """Split a string into a paper's title and body; without the separator all of it is the body."""
    if separator is None or separator not in text:
        return Text("paper", "", text.strip())
    title, _, body = text.partition(separator)
    return Text("paper", title.strip(), body.strip())


def distinct(values: Iterable[str]) -> list[str]:
    """Return values in order of their first appearance."""
    return list(dict.fromkeys(values))
