"""Cached indexes for windows of long rankings.

With few candidates, every query is compared with all of them; with more, an index selects which
(``SearchConfig``). An index is a step like any other (``Steps``): identified by its inputs, built
once, and by one of several processes.

Shape legend: C candidates, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.data.text_store import TextStore
from scimult.data.token_store import once_free
from scimult.hardware import usable_device
from scimult.preparation.mining.config import SearchConfig
from scimult.preparation.steps import Steps
from scimult.progress import note
from scimult.retrieval import analysis, coded, pruned_bm25
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.coded import LEAST, CodedIndex, write_codes
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.pruned_bm25 import PrunedBM25Index, write_pruned_bm25
from scimult.types import FloatArray, IntArray, Similarity

VERSION = "2"
_CODES = "codes.faiss"
_TEXTS, _HASHED = 1 << 14, 1 << 16


class Indexes:
    """Builds exact or cached indexes of candidates."""

    def __init__(self, texts: TextStore, config: SearchConfig, steps: Steps) -> None:
        self._texts, self._config, self._steps = texts, config, steps

    def bm25(self, name: str, rows_C: IntArray) -> BM25Index | PrunedBM25Index:
        """Return a BM25 index of the set of candidates called ``name``; their text rows ascend."""
        config, ids = self._config.bm25, self._texts.ids_at(rows_C)
        if len(rows_C) < config.exact_below:
            return BM25Index(ids, [text.joined for text in self._texts.texts(rows_C)])

        def blocks() -> Iterator[list[str]]:
            for start in range(0, len(rows_C), _TEXTS):
                texts = self._texts.texts(rows_C[start : start + _TEXTS])
                yield [text.joined for text in texts]

        def make(folder: Path) -> None:
            note(f"building the BM25 index of {len(rows_C):,} texts")
            write_pruned_bm25(folder, ids, blocks(), longest=config.longest)

        inputs = {
            "texts": self._texts.fingerprint,
            "rows": _hash_of(rows_C),
            "longest": config.longest,
            "analysis": analysis.VERSION,
        }
        effort = pruned_bm25.Effort(config.postings, config.overfetch, config.spare)
        return PrunedBM25Index(self._cached(f"index.bm25.{name}", inputs, make), effort=effort)

    def dense(
        self, name: str, rows_C: IntArray, vectors_CD: FloatArray, similarity: Similarity
    ) -> ExactIndex | CodedIndex:
        """Return an index of candidates' vectors, called ``name``; their text rows ascend."""
        config, device = self._config.dense, usable_device(None)
        exact = ExactIndex(self._texts.ids_at(rows_C), vectors_CD, similarity, device=device)
        if len(rows_C) < max(config.exact_below, LEAST):
            return exact

        def make(folder: Path) -> None:
            note(f"encoding {len(rows_C):,} vectors as codes")
            write_codes(folder / _CODES, vectors_CD, similarity, lists=config.lists)

        vectors = _hash_of(vectors_CD)
        inputs = {"vectors": vectors, "similarity": similarity, "lists": config.lists}
        folder = self._cached(f"index.dense.{name}", inputs, make)
        effort = coded.Effort(config.probes, config.overfetch, config.spare)
        return CodedIndex(folder / _CODES, exact, effort)

    def _cached(self, name: str, inputs: dict[str, Any], make: Callable[[Path], None]) -> Path:
        lock = self._steps.folder / f".{name}.made"  # a step has a lock of its own name
        with once_free(lock, self._steps.folder / name, "its index"):
            return self._steps.run(name, {"version": VERSION, **inputs}, make).folder


def _hash_of(rows: NDArray[Any]) -> str:
    """Return a hash of an array, read block by block."""
    digest = hashlib.sha256(f"{rows.dtype} {rows.shape}".encode())
    for start in range(0, len(rows), _HASHED):
        digest.update(np.ascontiguousarray(rows[start : start + _HASHED]).data)
    return digest.hexdigest()
