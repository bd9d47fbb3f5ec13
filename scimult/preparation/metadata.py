"""Authors, venues, years and labels of papers, read from a prepared folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from scimult.data.ragged import Ragged
from scimult.data.text_store import open_arrow
from scimult.types import IntArray

FILE_NAME = "metadata.arrow"
VERSION = "1"
NONE = -1


@dataclass(frozen=True)
class Metadata:
    """Metadata by row of the text store; rows that are no papers have none.

    Parameters
    ----------
    authors, venues, labels : Ragged
        Author codes, at most one venue code, and rows of labels, for each of N text rows.
    years : IntArray
        Year of each of N text rows; -1 where unknown.
    """

    authors: Ragged
    venues: Ragged
    labels: Ragged
    years: IntArray

    @classmethod
    def open(cls, folder: Path | str, count: int) -> Metadata:
        """Read ``metadata.arrow`` of a prepared folder whose text store has ``count`` rows.

        Raises
        ------
        DataError
            If the file is absent, damaged or of another format version.
        """
        table = open_arrow(Path(folder) / FILE_NAME, "metadata", VERSION).combine_chunks()
        rows = table.column("row").to_numpy()
        authors, labels = (table.column(name).chunk(0) for name in ("authors", "labels"))
        venues = table.column("venue").chunk(0).indices.fill_null(NONE).to_numpy().astype(np.int64)
        has_venue = venues != NONE
        return cls(
            authors=_spread(authors, authors.values.indices, rows, count),
            venues=Ragged.from_pairs(rows[has_venue], venues[has_venue], count),
            labels=_spread(labels, labels.values, rows, count),
            years=read_years(folder, count),
        )


def read_years(folder: Path | str, count: int) -> IntArray:
    """Return the year of each of ``count`` text rows; -1 where there is none."""
    table = open_arrow(Path(folder) / FILE_NAME, "metadata", VERSION)
    years = np.full(count, NONE, dtype=np.int64)
    years[table.column("row").to_numpy()] = table.column("year").fill_null(NONE).to_numpy()
    return years


def _spread(lists: pa.LargeListArray, values: pa.Array, rows: IntArray, count: int) -> Ragged:
    """Return the lists of some rows as lists of all ``count`` rows."""
    compact = Ragged(values.to_numpy().astype(np.int64), lists.offsets.to_numpy())
    return Ragged.from_pairs(rows[compact.owners], compact.values, count)
