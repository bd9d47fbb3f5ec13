"""Embeddings that are hard to search, and comparisons of lists. Legend: N rows."""

from __future__ import annotations

import numpy as np

from scimult.retrieval.runs import Ranking
from scimult.types import FloatArray


def embeddings(kind: str, count: int, width: int, seed: int) -> FloatArray:
    """Return normal vectors, or others of this kind."""
    rng = np.random.default_rng(seed)
    x_ND = rng.normal(size=(count, width))
    if kind == "of other lengths":
        x_ND *= rng.lognormal(size=(count, 1))
    if kind == "close together":
        x_ND = rng.normal(size=(1, width)) + 0.003 * x_ND
    if kind == "with copies":
        x_ND = x_ND[rng.integers(0, max(1, count // 3), count)]
    if kind == "with a large dimension":
        x_ND[:, 7] *= 50
    return x_ND.astype(np.float32)


def assert_same(ours: Ranking, theirs: Ranking) -> None:
    """Check that lists are equal bit by bit."""
    assert np.array_equal(ours.rows_QK, theirs.rows_QK)
    assert np.array_equal(ours.scores_QK, theirs.scores_QK)
    assert ours.scores_QK.dtype == theirs.scores_QK.dtype
    assert ours.rows_QK.dtype == theirs.rows_QK.dtype
