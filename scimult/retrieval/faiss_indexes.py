"""Indexes of faiss over vectors of any similarity, their queries and their files.

Shape legend: N vectors, Q queries, D width.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, Similarity

if TYPE_CHECKING:
    import faiss

# Bytes written together.
_BYTES = 1 << 20


def for_faiss(embeddings_ND: FloatArray, similarity: Similarity) -> FloatArray:
    """Return contiguous float32 vectors to train `new_index` with, or to add to it."""
    x_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
    return unit_rows(x_ND) if similarity == "cosine" else x_ND


def new_index(width: int, text: str, similarity: Similarity) -> faiss.Index:
    """Return an untrained index that ranks vectors of `for_faiss`, given faiss's ``text`` for it.

    Unit vectors are ranked alike by distance and product, but the products of their codes, which
    have other lengths, are far off where all vectors point one way. Where products are asked for,
    inverted lists hold vectors less their mean: what all vectors share changes no order, but would
    make all lists alike.
    """
    import faiss  # few callers need it

    metric = faiss.METRIC_INNER_PRODUCT if similarity == "dot" else faiss.METRIC_L2
    index = faiss.index_factory(width, text, metric)
    if similarity != "dot" or "IVF" not in text:
        return index
    return faiss.IndexPreTransform(faiss.CenteringTransform(width), index)


def write_index(index: faiss.Index, path: Path) -> None:
    """Write an index.

    Raises
    ------
    OSError
        If the disk is full or the folder cannot be written: faiss itself raises another error, or
        none if only its last bytes do not fit.
    """
    library: Any = importlib.import_module("faiss")  # its types lack the writer
    with path.open("wb") as file:
        library.write_index(index, library.PyCallbackIOWriter(file.write, _BYTES))


def queries_for(index: faiss.Index, queries_QD: FloatArray, similarity: Similarity) -> FloatArray:
    """Return queries for an index of `new_index`, or one of an earlier version."""
    import faiss

    x_QD = for_faiss(queries_QD, similarity)
    if isinstance(index, faiss.IndexPreTransform):
        first = faiss.downcast_VectorTransform(cast(Any, index.chain).at(0))
        if isinstance(first, faiss.CenteringTransform):
            # The index takes it away from queries, too, whose products then rank otherwise.
            x_QD = x_QD + faiss.vector_to_array(first.mean)
    return x_QD
