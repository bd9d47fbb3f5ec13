"""The raw files that a converter writes: papers, labels, queries and pairs, as prepare reads them.

Everything is written as it comes. Only the ids of papers, labels and answered queries are kept in
memory (as prepare itself does); a pair whose papers are not known yet waits on disk, and so does
what a repeated paper adds.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TextIO

from scimult.data.lines import Record, Rejects
from scimult.errors import DataError
from scimult.preparation.config import SourceConfig
from scimult.preparation.sources.pair_tables import Dangling, PairTable, PairTables, check_id
from scimult.preparation.sources.paper_file import PaperFile, create_packed
from scimult.types import Text

Makes = Literal["labels", "citations", "links", "judgments"]
_SINGULAR = {
    "labels": "paper with a label",
    "citations": "citation",
    "links": "link",
    "judgments": "judgment",
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
    dangling : mapping
        For each table of pairs whether one that names an unknown paper is an error or dropped
        and counted; references are dropped unless it says otherwise.

    Attributes
    ----------
    counts : Counter
        What was met and written.
    notes : list of str
        What the user should know besides.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        rejects: Rejects,
        dangling: Mapping[PairTable, Dangling] | None = None,
    ) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self._rejects = rejects
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._open = ExitStack()
        self._files: dict[str, TextIO] = {}
        self._labels: set[str] = set()
        self._queries: set[str] = set()
        self._papers = PaperFile(self._folder / "papers.jsonl.gz", self.counts)
        self._open.callback(self._papers.close)
        ids = self._papers, self._queries
        self._pairs = PairTables(self._folder, self.counts, rejects, dangling or {}, *ids)
        self._open.callback(self._pairs.close)

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
        target: str | float | None = None,
    ) -> None:
        """Write a paper; one whose id is known is united with what was written.

        Its labels need not be known yet: write those that papers define after the paper, for
        one that is refused must not leave labels that nothing has.

        Raises
        ------
        DataError
            If title and abstract are both empty, or the id cannot stand in a table.
        """
        check_id(record, identifier)
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
            "target": target,
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
        check_id(record, identifier)
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
        self._pairs.add("citations", record, (citing, cited))

    def reference(self, record: Record, citing: str, cited: str) -> None:
        """Write a citation that serves mining alone."""
        self._pairs.add("references", record, (citing, cited))

    def link(
        self, record: Record, query: str, paper: str, score: float, negative: str | None = None
    ) -> None:
        """Write a judged pair of papers.

        A positive may bring a hard negative of its own. A source gives ``negative`` for all of its
        pairs, empty where there is none, or for none of them.
        """
        if negative in (query, paper):
            negative = self._no_negative()
        self._pairs.add("links", record, _judged(query, paper, score, negative))

    def judgment(
        self, record: Record, query: str, paper: str, score: float, negative: str | None = None
    ) -> None:
        """Write a judged pair of query and paper; ``negative`` as in ``link``."""
        if negative == paper:
            negative = self._no_negative()
        self._pairs.add("judgments", record, _judged(query, paper, score, negative))

    def _no_negative(self) -> str:
        """Count a hard negative that is a paper of its own pair, as released data may have."""
        self.counts["hard negatives that are in their own pair"] += 1
        return ""

    def finish(self, makes: Sequence[Makes] = (), **choices: Any) -> SourceConfig:
        """Write the pairs that waited for their papers, close all files, describe the source.

        Parameters
        ----------
        makes : sequence of str
            What must come of the source, besides papers.
        **choices
            Further fields of ``SourceConfig``, for the parts that there are.

        Raises
        ------
        DataError
            If pairs name papers without a text (with their number), unless they are dropped or
            bad records are skipped; or if nothing is left of what must come: with what was read
            and left out.
        """
        self._pairs.finish()
        self.notes.extend(self._papers.finish())
        self._open.close()
        papers = self.counts["papers"]
        if not papers:
            raise self._nothing_left("no paper is left")
        threshold: float = choices.get("score_threshold", 1)
        for what in makes:
            if what == "labels":
                best = threshold if self._papers.have_labels else None
            else:
                best = self._pairs.best.get(what)
            if best is None:
                raise self._nothing_left(f"no {_SINGULAR[what]} is left")
            if best < threshold and what in ("links", "judgments"):
                raise self._nothing_left(f"no {_SINGULAR[what]} has a score of {threshold:g}")
        if self.counts["papers with empty abstract"] == papers:
            self.notes.append("every abstract is empty: models see titles alone")
        return self._described(choices)

    def _described(self, choices: Mapping[str, Any]) -> SourceConfig:
        """Return the configuration of what was written."""
        if "labels" in self._files and not self._papers.have_labels:
            del self._files["labels"]
            self.notes.append("no paper has a label: the labels train nothing")
        files = {name: f"{self.name}/{name}.jsonl.gz" for name in ("papers", *self._files)}
        files |= {name: f"{self.name}/{name}.tsv.gz" for name in self._pairs.best}
        needed = {"max_pairs_per_label": {"labels"}, "score_threshold": {"links", "judgments"}}
        fitting = {
            name: value
            for name, value in choices.items()
            if name not in needed or needed[name] & files.keys()
        }
        return SourceConfig(name=self.name, **files, **fitting)

    def _nothing_left(self, problem: str) -> DataError:
        """Return an error that says what was read and what was left out."""
        read = ", ".join(f"{count:,} {what}" for what, count in self.counts.items() if count)
        left_out = self._rejects.because()
        fix = "check that the folder holds this data set whole"
        if left_out:
            fix = "mend what was left out; without --skip-bad the first stops the work"
        return DataError(
            f"{problem} in {self.name!r}; read: {read or 'nothing'}{left_out}", fix=fix
        )

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        if name not in self._files:
            file = create_packed(self._folder / f"{name}.jsonl.gz")
            self._files[name] = self._open.enter_context(file)
        self._files[name].write(json.dumps(fields, ensure_ascii=False) + "\n")


def _judged(query: str, paper: str, score: float, negative: str | None) -> tuple[str, ...]:
    return (query, paper, _shown(score), *(() if negative is None else (negative,)))


def _shown(score: float) -> str:
    """Return a score so that it is read as the same number."""
    short = f"{score:g}"
    return short if float(short) == score else repr(float(score))


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
