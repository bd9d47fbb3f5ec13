"""Lists of several queries are those of each. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.products import packs_for_few
from scimult.retrieval import several_queries
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.few_candidates import MOST_PACKED
from scimult.retrieval.several_queries import SeveralQueries
from scimult.types import FloatArray, Similarity

pytestmark = pytest.mark.skipif(not packs_for_few(), reason="no AVX2")
_COUNT = MOST_PACKED + 50


def _vectors(rows: int, seed: int) -> FloatArray:
    """Return vectors of which a tenth are copies of others."""
    rng = np.random.default_rng(seed)
    x_ND = rng.normal(size=(rows, 24)).astype(np.float32)
    x_ND[: rows // 10] = x_ND[rows - rows // 10 :]
    return x_ND


def _ids() -> list[str]:
    return [f"{number:05}" for number in np.random.default_rng(0).permutation(_COUNT)]


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize(("queries", "k"), [(5, 1), (8, 20), (32, 100)])
def test_lists_are_those_of_each_query_alone(
    similarity: Similarity, offset: float, queries: int, k: int
) -> None:
    """Distances subtract a common offset."""
    candidates_CD, queries_QD = _vectors(_COUNT, 1) + offset, _vectors(queries, 2) + offset
    # Every second query is a candidate, the nearest to itself, and leaves it out.
    exclude_Q = np.where(np.arange(queries) % 2, np.arange(queries) // 2 * 14, -1)
    queries_QD[exclude_Q >= 0] = candidates_CD[exclude_Q[exclude_Q >= 0]]
    index = ExactIndex(_ids(), candidates_CD, similarity)
    assert isinstance(index._at_once(queries, k), SeveralQueries)
    for excluded_Q in (None, exclude_Q):
        found = index.search(queries_QD, k, exclude_Q=excluded_Q)
        for row in range(queries):
            one = slice(row, row + 1)
            left_out = None if excluded_Q is None else excluded_Q[one]
            alone = index.search(queries_QD[one], k, exclude_Q=left_out)
            assert np.array_equal(found.rows_QK[one], alone.rows_QK)
            assert np.array_equal(found.scores_QK[one], alone.scores_QK)


def test_scores_too_close_to_tell_are_left_to_a_search_that_can() -> None:
    candidates_CD = np.ones((_COUNT, 8), dtype=np.float32)
    index, queries_QD = ExactIndex(_ids(), candidates_CD, "dot"), np.ones((6, 8), np.float32)
    several = index._several
    assert several is not None
    queries = index._vectors.queries(queries_QD)
    assert several.search(queries, 10, None) is None
    found = index.search(queries_QD, 10)
    assert found.rows_QK.tolist() == [index.order_C[:10].tolist()] * 6
    whole = index.search(queries_QD, _COUNT)
    assert whole.rows_QK.tolist() == [index.order_C.tolist()] * 6


def test_overflows_are_refused_where_they_would_be_listed() -> None:
    candidates_CD = _vectors(_COUNT, 3)
    candidates_CD[5] = 1e30
    index, queries_QD = ExactIndex(_ids(), candidates_CD, "dot"), _vectors(6, 4)
    queries_QD[2] = 1e30
    with pytest.raises(DataError, match="not finite"):
        index.search(queries_QD, 3)
    queries_QD[2] = -1e30
    assert 5 not in index.search(queries_QD, 3).rows_QK[2]


def test_a_large_copy_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_queries, "_NUMBERS", _COUNT * 24 - 1)
    index = ExactIndex(_ids(), _vectors(_COUNT, 5), "dot")
    assert index._at_once(6, 10) is None
