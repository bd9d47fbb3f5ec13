"""Scores of every query, kept beside a result: what intervals and tests are made of.

``<system>/per_query/<set>.tsv.gz`` is a table with a header: ``query-id``, then one column per
metric in full precision, and ``weight`` where queries do not count the same. Coarse
classification (macro F1 is not a mean over papers) keeps ``correct``, ``gold``, ``predicted``
of each paper instead, from which it can be computed.
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
    """The table of one system and data set.

    Attributes
    ----------
    path : Path
        Where it was read.
    query_ids : list of str
        Ids of the Q queries, distinct.
    columns : dict
        Column name to its Q cells, as they are in the file.
    """

    path: Path
    query_ids: list[str]
    columns: dict[str, list[str]]

    def column(self, name: str) -> list[str]:
        """Return the cells of one column.

        Raises
        ------
        DataError
            If there is no such column.
        """
        if name not in self.columns:
            raise DataError("a column is missing", path=self.path, value=name, fix=AGAIN)
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
    def weights(self) -> Scores:
        """How much each query counts, 1 on average, shape ``(Q, 1)``."""
        if WEIGHT not in self.columns:
            return np.ones((len(self.query_ids), 1))
        return self.scores([WEIGHT])

    def in_order_of(self, query_ids: Sequence[str]) -> PerQuery:
        """Return the same table with its queries in another order.

        Raises
        ------
        DataError
            If these are other queries.
        """
        if self.query_ids == list(query_ids):
            return self
        rows = {query: row for row, query in enumerate(self.query_ids)}
        differing = rows.keys() ^ set(query_ids)
        if differing:
            raise DataError(
                f"{len(differing)} queries are in one system's scores only",
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
    """Write one line per query; the same scores give the same bytes."""
    path = _path(out, system, name)
    with (
        atomic_file(path) as temporary,
        open(temporary, "wb") as file,
        # Without name and time, which gzip would otherwise put into its header.
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        # Text is always quoted: csv.writer would leave a lone carriage return in an id bare.
        writer = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["query-id", *columns])
        writer.writerows(zip(query_ids, *columns.values(), strict=True))
    _plain(path).unlink(missing_ok=True)


def read_per_query(out: Path, system: str, name: str) -> PerQuery:
    """Read the table of one system and data set, packed or, as older results have it, plain.

    Raises
    ------
    DataError
        If it is not there, damaged, or has a query twice.
    """
    packed = _path(out, system, name)
    path = packed if packed.exists() else _plain(packed)
    if not path.exists():
        raise DataError(f"no scores per query of {system} on {name}", path=packed, fix=AGAIN)
    try:
        opened = gzip.open if path == packed else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file, delimiter="\t", strict=True)
        if header[0] != "query-id" or not lines:
            raise ValueError("no header or no queries")
        cells = [list(column) for column in zip(*lines, strict=True)]
        columns = dict(zip(header, cells, strict=True))
    except (OSError, EOFError, ValueError, IndexError, csv.Error, zlib.error) as error:
        raise DataError(f"not scores per query: {error}", path=path, fix=AGAIN) from error
    query_ids = columns.pop("query-id")
    if len(set(query_ids)) < len(query_ids):
        raise DataError("a query appears twice in the scores per query", path=path, fix=AGAIN)
    return PerQuery(path, query_ids, columns)


def has_per_query(out: Path, system: str, name: str) -> bool:
    """Return whether the scores per query of one system and data set are there."""
    packed = _path(out, system, name)
    return packed.exists() or _plain(packed).exists()


def _path(out: Path, system: str, name: str) -> Path:
    return folder_of(out, system) / "per_query" / f"{name}.tsv.gz"


def _plain(packed: Path) -> Path:
    return packed.with_suffix("")
