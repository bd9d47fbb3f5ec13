"""The papers of a raw source, each merged from all its records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scimult.data.records import Record
from scimult.data.shards import PAPERS, Shard
from scimult.terminal import shortened

_BATCH = 1024
MERGED = ("authors", "labels")
SINGLE = ("title", "abstract", "venue", "year", "doi", "target")
_LONGEST_SHOWN = 60


class PaperFile:
    """Writer of ``papers.parquet``; ``have_labels`` says whether any paper has a label.

    Records of the same paper are merged: authors and labels are combined; of title, abstract,
    venue, year, DOI and target the first non-empty value stays, and contradictions are counted and
    reported. Records that differ from the first of their paper wait on disk: memory holds the ids
    and a hash of each first record.
    """

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        self.have_labels = False
        self._path, self._counts = path, counts
        self._file: Shard | None = None
        self._more = path.with_name("more.jsonl").open("w+b")
        self._first: dict[str, int] = {}
        # Offsets in ``more.jsonl`` of a paper's other records, by their hash.
        self._others: dict[str, dict[int, int]] = {}
        self._examples: dict[str, str] = {}

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._first

    def add(self, record: Record, paper: dict[str, Any]) -> None:
        """Write a new paper, or keep another record of a known one."""
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
        entry = [str(record.path), record.line, paper]
        self._more.write(json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        self._more.close()

    def finish(self) -> list[str]:
        """Merge the records of each paper; return a note on each kind of contradiction."""
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
                        file.add(self._merged(paper, others.values()) if others else paper)
                file.close()
            first.unlink()
        self._more.close()
        Path(self._more.name).unlink()
        return [
            f"{what}: {self._counts[what]:,}, such as {example}"
            for what, example in self._examples.items()
        ]

    def _merged(self, paper: dict[str, Any], offsets: Iterable[int]) -> dict[str, Any]:
        """Return a paper merged with its other records."""
        contradicted: set[str] = set()
        for offset in offsets:
            self._more.seek(offset)
            path, number, other = json.loads(self._more.readline())
            for name in MERGED:
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
                    self._examples.setdefault(
                        f"papers with more than one {name}",
                        f"{path}:{number}: {_short(other[name])} for {paper['id']!r}, "
                        f"which keeps {_short(paper[name])}",
                    )
        for name in contradicted:
            self._counts[f"papers with more than one {name}"] += 1
        return paper


def _schema(paper: dict[str, Any]) -> pa.Schema:
    """Return the columns of a source's papers, whose targets have one type, from one of them."""
    kinds = {str: pa.string(), float: pa.float64()}
    target = paper.get("target")
    return PAPERS if target is None else PAPERS.append(pa.field("target", kinds[type(target)]))


def _is_empty(value: object) -> bool:
    return value is None or not str(value).strip()


def _words(value: object) -> list[str]:
    """Return a value's words for comparison, ignoring case and spaces."""
    return str(value).casefold().split()


def _short(value: object) -> str:
    return shortened(repr(value), _LONGEST_SHOWN)
