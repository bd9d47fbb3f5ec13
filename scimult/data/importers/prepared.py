"""Read the papers of a prepared folder, with metadata, citations and label names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scimult.data.records import Record
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import open_arrow, open_metadata, taken
from scimult.types import IntArray

_TEXT_COLUMNS = {"id": "id", "title": "title", "abstract": "body"}
_METADATA_COLUMNS = ("authors", "venue", "year", "doi")  # old folders have no doi
_BATCH = 8192


def read_prepared(folder: Path) -> Iterator[Record]:
    """Yield the papers of a prepared folder; the "line" is the row of the text.

    Raises
    ------
    DataError
        If a file is missing, damaged or of another format version.
    """
    texts = open_arrow(folder / TEXTS_FILE, "texts")
    metadata = open_metadata(folder)
    edges = open_arrow(folder / "citations.arrow", "citations")
    citing, cited = (edges.column(name).to_numpy() for name in ("citing", "cited"))
    names = [name for name in _METADATA_COLUMNS if name in metadata.column_names]
    for batch in metadata.to_batches(_BATCH):
        rows, labels = batch.column("row").to_numpy(), batch.column("labels")
        starts, ends = (np.searchsorted(citing, rows, side) for side in ("left", "right"))
        offsets = labels.offsets.to_numpy()
        columns: dict[str, list[Any]] = {
            **{ours: taken(texts.column(name), rows) for ours, name in _TEXT_COLUMNS.items()},
            **{name: batch.column(name).to_pylist() for name in names},
            "references": _lists(texts.column("id"), cited, starts, ends),
            "labels": _lists(
                texts.column("title"), labels.values.to_numpy(), offsets[:-1], offsets[1:]
            ),
        }
        for i, row in enumerate(rows.tolist()):
            yield Record(folder / TEXTS_FILE, row, {n: values[i] for n, values in columns.items()})


def _lists(
    column: pa.ChunkedArray, rows: IntArray, starts: IntArray, ends: IntArray
) -> list[list[str]]:
    """Return the texts at ``rows[start:end]`` of each start and end, which ascend."""
    first = starts[0]
    texts = taken(column, rows[first : ends[-1]])
    return [texts[start - first : end - first] for start, end in zip(starts, ends, strict=True)]
