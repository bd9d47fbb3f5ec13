"""Read a prepared folder's pairs, metadata and citations in a form that tests compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore, TextStoreWriter, open_arrow, open_metadata
from scimult.preparation.metadata import NONE, read_years
from scimult.types import IntArray, Text


@dataclass(frozen=True)
class Metadata:
    """Metadata by row of the text store; only papers have any."""

    authors: Ragged
    venues: Ragged
    labels: Ragged
    years: IntArray

    @classmethod
    def open(cls, folder: Path | str, count: int) -> Metadata:
        """Read ``metadata.arrow`` of a prepared folder whose text store has ``count`` rows."""
        table = open_metadata(Path(folder)).combine_chunks()
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


def _spread(lists: pa.LargeListArray, values: pa.Array, rows: IntArray, count: int) -> Ragged:
    """Spread the lists of some rows over all ``count`` rows."""
    compact = Ragged(values.to_numpy().astype(np.int64), lists.offsets.to_numpy())
    return Ragged.from_pairs(rows[compact.owners], compact.values, count)


def write_texts(folder: Path, texts: Mapping[str, Text]) -> TextStore:
    """Write texts by their ids and open the store."""
    folder.mkdir(exist_ok=True)
    with TextStoreWriter(folder) as writer:
        for identifier, text in texts.items():
            writer.add(identifier, text)
    return TextStore.open(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder, by its path in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def citations(data: PreparedData) -> IntArray:
    """Return all citation edges as rows ``(citing, cited)``."""
    return _columns(data.folder / "citations.arrow", "citations")


def shown(data: PreparedData) -> IntArray:
    """Return ``(query, paper)`` rows of papers shown or judged, but not positive."""
    return _columns(data.folder / "shown.arrow", "shown")


def named_pairs(data: PreparedData, files: list[PairFile]) -> list[tuple[str, str]]:
    """Return the ids of every query and positive of some pair files."""
    ids = data.texts.ids
    return [
        (ids[query], ids[positive])
        for file in files
        for query, group in zip(file.queries, file.positives, strict=True)
        for positive in group
    ]


def _columns(path: Path, what: str) -> IntArray:
    columns = open_arrow(path, what).columns
    return np.stack([column.to_numpy() for column in columns], axis=1)
