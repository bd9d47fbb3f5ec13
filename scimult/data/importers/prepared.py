"""Read the papers of a prepared folder, with metadata, citations and label names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scimult.data.lines import Record
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import open_arrow
from scimult.types import IntArray

METADATA_FILE = "metadata.arrow"
_TEXT_COLUMNS = {"id": "id", "title": "title", "abstract": "body"}
_METADATA_COLUMNS = ("authors", "venue", "year", "doi", "labels")  # old folders have no doi
_BATCH = 8192


def read_prepared(folder: Path) -> Iterator[Record]:
    """Yield the papers of a prepared folder; the "line" is the row of the text.

    Raises
    ------
    DataError
        If a file is missing, damaged or of another format version.
    """
    texts = open_arrow(folder / TEXTS_FILE, "texts", "1")
    metadata = open_arrow(folder / METADATA_FILE, "metadata", "1")
    edges = open_arrow(folder / "citations.arrow", "citations", "1")
    citing, cited = (edges.column(name).to_numpy() for name in ("citing", "cited"))
    names = [name for name in _METADATA_COLUMNS if name in metadata.column_names]
    for batch in metadata.to_batches(_BATCH):
        rows = batch.column("row").to_numpy()
        columns = {ours: _taken(texts, name, rows) for ours, name in _TEXT_COLUMNS.items()}
        columns |= {name: batch.column(name).to_pylist() for name in names}
        starts, ends = (np.searchsorted(citing, rows, side) for side in ("left", "right"))
        for i, row in enumerate(rows.tolist()):
            fields: dict[str, Any] = {name: values[i] for name, values in columns.items()}
            fields["references"] = _taken(texts, "id", cited[starts[i] : ends[i]])
            fields["labels"] = _taken(texts, "title", np.array(fields["labels"], dtype=np.int64))
            yield Record(folder / TEXTS_FILE, row, fields)


def _taken(texts: pa.Table, column: str, rows: IntArray) -> list[str]:
    return [] if not len(rows) else pc.take(texts.column(column), pa.array(rows)).to_pylist()
