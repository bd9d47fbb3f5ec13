"""The papers of a raw source: each once, with what all its records say of it."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO, cast

from scimult.data.lines import Record

COMPRESSION = 1  # the files are read once or twice: speed counts more than size
UNITED = ("authors", "labels")
SINGLE = ("title", "abstract", "venue", "year", "doi", "target")
_LONGEST_SHOWN = 60


class PaperFile:
    """``papers.jsonl.gz`` in the making.

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
        self._file = create_packed(path)
        self._more = path.with_name("more.jsonl").open("w+b")
        self._first: dict[str, int] = {}
        # Where the other records of a paper start in ``more.jsonl``, by their hash.
        self._others: dict[str, dict[int, int]] = {}
        self._examples: dict[str, str] = {}

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._first

    def add(self, record: Record, paper: dict[str, Any]) -> None:
        """Write a paper that is new, or keep what this record of it says besides the first."""
        identifier, line = paper["id"], json.dumps(paper, ensure_ascii=False)
        content = hash(line)
        self.have_labels |= "labels" in paper
        if identifier not in self._first:
            self._first[identifier] = content
            self._file.write(line + "\n")
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
        self._file.close()
        self._more.close()

    def finish(self) -> list[str]:
        """Unite what the records of each paper say; return a note on each contradiction."""
        self._file.close()
        if self._others:
            first = self._path.with_name("first.jsonl.gz")
            self._path.replace(first)
            lines = gzip.open(first, "rt", encoding="utf-8", newline="\n")  # noqa: SIM115
            with lines, create_packed(self._path) as file:
                for identifier, line in zip(self._first, lines, strict=True):
                    others = self._others.get(identifier)
                    file.write(line if others is None else self._united(line, others.values()))
            first.unlink()
        self._more.close()
        Path(self._more.name).unlink()
        return [
            f"{self._counts[what]:,} {what}, such as {example}"
            for what, example in self._examples.items()
        ]

    def _united(self, line: str, places: Iterable[int]) -> str:
        """Return a paper's line with what its other records say."""
        paper: dict[str, Any] = json.loads(line)
        contradicted: set[str] = set()
        for place in places:
            self._more.seek(place)
            path, number, other = json.loads(self._more.readline())
            for name in UNITED:
                known = paper.get(name, [])
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
                    shown = f"{_short(other[name])} for {paper['id']!r}"
                    example = f"{path}:{number}: {shown}, which keeps {_short(paper[name])}"
                    self._examples.setdefault(f"papers with more than one {name}", example)
        for name in contradicted:
            self._counts[f"papers with more than one {name}"] += 1
        return json.dumps(paper, ensure_ascii=False) + "\n"


def create_packed(path: Path) -> TextIO:
    """Open a gzip file for writing text; the same text gives the same bytes."""
    packed = gzip.GzipFile(path, "wb", compresslevel=COMPRESSION, mtime=0)
    return io.TextIOWrapper(cast(Any, packed), encoding="utf-8", newline="\n")


def _is_empty(value: object) -> bool:
    return value is None or not str(value).strip()


def _words(value: object) -> list[str]:
    """Return what two values must share to be the same: case and spaces vary between records."""
    return str(value).casefold().split()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
