"""The papers of a raw source: each once, with what all its records say of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scimult.data.lines import Record
from scimult.data.shards import PAPERS, Shard

_BATCH = 1024
UNITED = ("authors", "labels")
SINGLE = ("title", "abstract", "venue", "year", "doi", "target")
_LONGEST_SHOWN = 60


class PaperFile:
    """``papers.parquet`` in the making.

    A paper may come again. Its authors and labels are united; of title, abstract, venue, year,
    DOI and target the first that is not empty stays, and another one is counted and named. Records
    that differ from the first of their paper wait on disk: memory holds the ids and a hash of
    each first record.

    Parameters
    ----------
    path : Path
        Where the papers go.
    counts : Counter
        Takes what was met.

    Attributes
    ----------
    have_labels : bool
        Whether any paper has a label.
    """

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        self.have_labels = False
        self._path, self._counts = path, counts
        self._file: Shard | None = None
        self._more = path.with_name("more.jsonl").open("w+b")
        self._first: dict[str, int] = {}
        # Where the other records of a paper start in ``more.jsonl``, by their hash.
        self._others: dict[str, dict[int, int]] = {}
        self._examples: dict[str, str] = {}

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._first

    def add(self, record: Record, paper: dict[str, Any]) -> None:
        """Write a paper that is new, or keep what this record of it says besides the first."""
        identifier, content = paper["id"], hash(repr(paper))
        self.have_labels |= "labels" in paper
        if identifier not in self._first:
            self._first[identifier] = content
            if self._file is None:
                self._file = Shard(self._path, _schema(paper))
            self._file.add(paper)
            self._counts["papers"] += 1
            self._counts["papers with empty abstract"] += not paper["abstract"].strip()
            return
        self._counts["papers repeated"] += 1
        others = self._others.get(identifier, {})
        if content == self._first[identifier] or content in others:
            return
        self._others[identifier] = {**others, content: self._more.tell()}
        place = [str(record.path), record.line, paper]
        self._more.write(json.dumps(place).encode() + b"\n")

    def close(self) -> None:
        """Close the files as they are."""
        if self._file is not None:
            self._file.close()
        self._more.close()

    def finish(self) -> list[str]:
        """Unite what the records of each paper say; return a note on each contradiction."""
        if self._file is not None:
            self._file.close()
        if self._others:
            first = self._path.with_name("first.parquet")
            self._path.replace(first)
            with pq.ParquetFile(first) as papers:
                file = Shard(self._path, papers.schema_arrow)
                for batch in papers.iter_batches(_BATCH):
                    for paper in batch.to_pylist():
                        others = self._others.get(paper["id"], {})
                        file.add(self._united(paper, others.values()) if others else paper)
                file.close()
            first.unlink()
        self._more.close()
        Path(self._more.name).unlink()
        return [
            f"{self._counts[what]:,} {what}, such as {example}"
            for what, example in self._examples.items()
        ]

    def _united(self, paper: dict[str, Any], places: Iterable[int]) -> dict[str, Any]:
        """Return a paper with what its other records say."""
        contradicted: set[str] = set()
        for place in places:
            self._more.seek(place)
            path, number, other = json.loads(self._more.readline())
            for name in UNITED:
                known = paper[name] or []
                new = [value for value in other.get(name, ()) if value not in known]
                self._counts[f"{name} added by repeated papers"] += len(new)
                if new:
                    paper[name] = known + new
            for name in (name for name in SINGLE if not _is_empty(other.get(name))):
                if _is_empty(paper.get(name)):
                    paper[name] = other[name]
                    self._counts[f"{name}s added by repeated papers"] += 1
                    self._counts["papers with empty abstract"] -= name == "abstract"
                elif _words(paper[name]) != _words(other[name]):
                    contradicted.add(name)
                    rival = f"{_short(other[name])} for {paper['id']!r}"
                    example = f"{path}:{number}: {rival}, which keeps {_short(paper[name])}"
                    self._examples.setdefault(f"papers with more than one {name}", example)
        for name in contradicted:
            self._counts[f"papers with more than one {name}"] += 1
        return paper


def _schema(paper: dict[str, Any]) -> pa.Schema:
    """Return the columns of papers like this one: its source gives targets of one type, or none."""
    kinds = {str: pa.string(), float: pa.float64()}
    target = paper.get("target")
    return PAPERS if target is None else PAPERS.append(pa.field("target", kinds[type(target)]))


def _is_empty(value: object) -> bool:
    return value is None or not str(value).strip()


def _words(value: object) -> list[str]:
    """Return what two values must share to be the same: case and spaces vary between records."""
    return str(value).casefold().split()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
