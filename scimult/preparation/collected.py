"""Result of reading the sources, as a folder: texts, metadata and pairs, not yet split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from scimult.data.prepared import CITATIONS_FILE, SHOWN_FILE, TRIPLES_FILE, read_triples
from scimult.data.records import Rejects
from scimult.data.targets import TargetFile, read_targets, write_targets
from scimult.data.teacher import TeacherScores, read_teacher_scores
from scimult.data.text_store import open_arrow, write_arrow
from scimult.files import read_json, write_json
from scimult.preparation.config import Part, SourceConfig
from scimult.preparation.pair_columns import Columns
from scimult.types import IntArray

VERSION = "3"
FILE_NAME = "collected.json"


@dataclass(frozen=True)
class RawPairs:
    """Unique (query, positive) rows from one part of a source.

    ``has_triples``: some pairs came with a hard negative of their own.
    """

    source: SourceConfig
    part: Part
    queries: IntArray
    positives: IntArray
    has_triples: bool = False

    @property
    def task(self) -> str:
        """The task that the pairs train."""
        return self.source.task(self.part)


@dataclass(frozen=True)
class Collected:
    """Everything but the texts and metadata, which are files in the same folder.

    ``citations`` are ``(citing, cited)`` of all sources, including references for mining only;
    ``shown`` are ``(query, paper)`` of shown papers, and ``triples`` query, positive and a hard
    negative of that pair only, shape ``(T, 3)``. All are unique rows. ``label_rows`` are by
    namespace, ``counts`` by source, from reading.
    """

    parts: list[RawPairs]
    citations: Columns
    shown: Columns
    triples: IntArray
    teacher: TeacherScores | None
    label_rows: dict[str, range]
    counts: dict[str, dict[str, int]]
    rejects: Rejects
    targets: list[TargetFile] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write pairs as Arrow files and the rest as JSON into ``folder``."""
        _write_pairs(folder / CITATIONS_FILE, "citations", ("citing", "cited"), self.citations)
        _write_pairs(folder / SHOWN_FILE, "shown", ("query", "paper"), self.shown)
        if len(self.triples):
            names = ("query", "positive", "negative")
            columns = dict(zip(names, self.triples.T, strict=True))
            write_arrow(folder / TRIPLES_FILE, "triples", columns)
        if self.teacher is not None:
            self.teacher.write(folder)
        parts = []
        for number, part in enumerate(self.parts):
            name = f"raw-{number}.arrow"
            pairs = (part.queries, part.positives)
            _write_pairs(folder / name, "raw pairs", ("query", "positive"), pairs)
            entry = {"file": name, "source": part.source.name, "part": part.part}
            parts.append({**entry, "has_triples": part.has_triples})
        for number, targets in enumerate(self.targets):
            write_targets(folder / _targets_file(number), targets)
        tree = {
            "version": VERSION,
            "parts": parts,
            "targets": [{"source": targets.source} for targets in self.targets],
            "label_rows": {name: [r.start, r.stop] for name, r in self.label_rows.items()},
            "counts": self.counts,
            "rejects": dict(self.rejects.counts),
            "examples": self.rejects.examples,
        }
        write_json(folder / FILE_NAME, tree)

    @classmethod
    def load(cls, folder: Path, sources: Sequence[SourceConfig], rejects: Rejects) -> Collected:
        """Read what ``save`` wrote; the counts of bad records go into ``rejects``."""
        tree = read_json(folder / FILE_NAME)
        by_name = {source.name: source for source in sources}
        rejects.counts.update(tree["rejects"])
        rejects.examples.update(tree["examples"])
        return cls(
            parts=[
                RawPairs(
                    by_name[entry["source"]],
                    entry["part"],
                    *_read_columns(folder / entry["file"], "raw pairs"),
                    has_triples=entry["has_triples"],
                )
                for entry in tree["parts"]
            ],
            citations=_read_columns(folder / CITATIONS_FILE, "citations"),
            shown=_read_columns(folder / SHOWN_FILE, "shown"),
            triples=read_triples(folder),
            teacher=read_teacher_scores(folder),
            targets=[
                replace(
                    read_targets(folder / _targets_file(number)),
                    namespace=by_name[entry["source"]].space,
                )
                for number, entry in enumerate(tree["targets"])
            ],
            label_rows={name: range(*rows) for name, rows in tree["label_rows"].items()},
            counts=tree["counts"],
            rejects=rejects,
        )


def _targets_file(number: int) -> str:
    return f"raw-targets-{number}.arrow"


def unique_rows(tables: Sequence[IntArray]) -> IntArray:
    """Concatenate three-column tables, sort their rows and drop duplicates."""
    rows = np.concatenate([np.empty((0, 3), np.int64), *tables])
    rows = rows[np.lexsort(rows.T[::-1])]
    return rows[np.any(np.diff(rows, axis=0, prepend=-1), axis=1)]


def _write_pairs(path: Path, what: str, names: tuple[str, str], pairs: Columns) -> None:
    write_arrow(path, what, dict(zip(names, pairs, strict=True)))


def _read_columns(path: Path, what: str) -> Columns:
    table = open_arrow(path, what)
    first, second = (column.to_numpy() for column in table.columns)
    return first, second
