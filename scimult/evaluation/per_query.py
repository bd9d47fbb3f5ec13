"""Per-query scores next to a result: the input of intervals and tests.

``<system>/per_query/<set>.tsv.gz`` is a table with a header: ``query-id``, then one column per
metric in full precision, and ``weight`` where queries do not count the same. Sets whose papers get
one label, scored by macro F1, instead keep ``correct``, ``gold`` and ``predicted`` of each paper,
from which it can be computed. The column of a correlation, of binary F1, or of macro F1 of several
labels has each paper's share in it.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.errors import DataError
from scimult.evaluation.metrics import Scores
from scimult.evaluation.protocols import WEIGHT
from scimult.evaluation.results import folder_of
from scimult.files import atomic_file

AGAIN = "evaluate the system again"


@dataclass(frozen=True)
class PerQuery:
    """The table of one system and data set: cells by column, as in the file ``path``."""

    path: Path
    query_ids: list[str]
    columns: dict[str, list[str]]

    def column(self, name: str) -> list[str]:
        """Return the cells of one column; raise a DataError if there is no such column."""
        if name not in self.columns:
            raise DataError("missing column", path=self.path, value=name, fix=AGAIN)
        return self.columns[name]

    def scores(self, metrics: Sequence[str]) -> Scores:
        """Return the scores of every query under M metrics, shape ``(Q, M)``.

        Raises
        ------
        DataError
            If a metric is missing or a cell is not a number.
        """
        cells_MQ = [self.column(metric) for metric in metrics]
        try:
            scores_MQ = np.array(cells_MQ, dtype=np.float64)
        except ValueError as error:
            raise DataError(f"not a score: {error}", path=self.path, fix=AGAIN) from error
        return np.ascontiguousarray(scores_MQ.T)

    @property
    def weights(self) -> Scores | None:
        """Weight of each query, 1 on average, shape ``(Q, 1)``; None where all count the same."""
        return self.scores([WEIGHT]) if WEIGHT in self.columns else None

    def in_order_of(self, query_ids: Sequence[str]) -> PerQuery:
        """Return the table with its queries in the given order; they must be the same.

        Raises
        ------
        DataError
            If the queries differ.
        """
        if self.query_ids == list(query_ids):
            return self
        rows = {query: row for row, query in enumerate(self.query_ids)}
        differing = rows.keys() ^ set(query_ids)
        if differing:
            raise DataError(
                f"only one of the systems has scores for {len(differing)} queries",
                path=self.path,
                value=min(differing),
                fix="evaluate both systems again on the same data",
            )
        order = [rows[query] for query in query_ids]
        columns = {name: [cells[row] for row in order] for name, cells in self.columns.items()}
        return PerQuery(self.path, list(query_ids), columns)


def write_per_query(
    out: Path,
    system: str,
    name: str,
    query_ids: Sequence[str],
    columns: Mapping[str, Sequence[float] | Sequence[str]],
) -> None:
    """Write one line per query; equal scores give equal bytes."""
    path = _path(out, system, name)
    with (
        atomic_file(path) as temporary,
        open(temporary, "wb") as file,
        # Fix name and time: gzip would otherwise put them into its header.
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        # Always quote text: csv.writer would leave a lone carriage return in an id bare.
        writer = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["query-id", *columns])
        writer.writerows(zip(query_ids, *columns.values(), strict=True))
    _plain(path).unlink(missing_ok=True)


def read_per_query(out: Path, system: str, name: str) -> PerQuery:
    """Read the table of one system and data set, packed or (older results) plain.

    Raises
    ------
    DataError
        If it is missing, damaged, or has a query twice.
    """
    packed = _path(out, system, name)
    path = packed if packed.exists() else _plain(packed)
    if not path.exists():
        raise DataError(f"no per-query scores of {system} on {name}", path=packed, fix=AGAIN)
    try:
        open_file = gzip.open if path == packed else open
        with open_file(path, "rt", encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file, delimiter="\t", strict=True)
        if header[0] != "query-id" or not lines:
            raise ValueError("no header or no queries")
        cells = [list(column) for column in zip(*lines, strict=True)]
        columns = dict(zip(header, cells, strict=True))
    except (OSError, EOFError, ValueError, IndexError, csv.Error, zlib.error) as error:
        raise DataError(f"not per-query scores: {error}", path=path, fix=AGAIN) from error
    query_ids = columns.pop("query-id")
    if len(set(query_ids)) < len(query_ids):
        raise DataError("a query occurs twice in the per-query scores", path=path, fix=AGAIN)
    return PerQuery(path, query_ids, columns)


def has_per_query(out: Path, system: str, name: str) -> bool:
    """Return whether one system has per-query scores of a data set."""
    packed = _path(out, system, name)
    return packed.exists() or _plain(packed).exists()


def _path(out: Path, system: str, name: str) -> Path:
    return folder_of(out, system) / "per_query" / f"{name}.tsv.gz"


def _plain(packed: Path) -> Path:
    return packed.with_suffix("")
