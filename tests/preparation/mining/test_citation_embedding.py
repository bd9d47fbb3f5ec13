"""The citation embedding against an exact decomposition, and on graphs with known structure."""

from __future__ import annotations

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.preparation.mining.citation_embedding import citation_embedding, regularised_adjacency
from scimult.types import FloatArray, IntArray


def _random_edges(count: int, edges: int, seed: int) -> IntArray:
    rng = np.random.default_rng(seed)
    drawn = np.unique(rng.integers(0, count, (edges, 2)), axis=0)
    return drawn[drawn[:, 0] != drawn[:, 1]]


def _dense_matrix(edges: IntArray, count: int) -> FloatArray:
    """Return the matrix of the definition, entry by entry."""
    adjacency = np.zeros((count, count))
    for a, b in edges:
        adjacency[a, b] = adjacency[b, a] = 1
    degree = adjacency.sum(axis=1)
    d = degree + degree.mean()
    return (adjacency + np.eye(count)) / np.sqrt(d[:, None] * d[None, :])


def test_the_matrix_is_that_of_the_definition() -> None:
    edges = np.concatenate([_random_edges(30, 80, 0), [[1, 0], [0, 1]]])
    matrix = regularised_adjacency(edges, 30).toarray()
    np.testing.assert_allclose(matrix, _dense_matrix(edges, 30), rtol=1e-5)


def test_cosines_equal_those_of_the_exact_decomposition() -> None:
    edges = _random_edges(60, 150, 1)
    papers, vectors = citation_embedding(edges, width=60, iterations=5, seed=0)
    count = len(papers)
    matrix = _dense_matrix(np.searchsorted(papers, edges), count)
    # In full width U S Uᵀ-products are M², whatever basis the solver finds.
    square = matrix @ matrix
    lengths = np.sqrt(np.diag(square))
    np.testing.assert_allclose(vectors @ vectors.T, square / np.outer(lengths, lengths), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_communities_are_apart_whatever_the_row_numbers_and_small_components() -> None:
    rng = np.random.default_rng(0)
    inside = [_random_edges(40, 300, seed) + 40 * seed for seed in range(4)]
    bridges = rng.integers(0, 160, (12, 2))
    pairs = [[200 + 2 * i, 201 + 2 * i] for i in range(60)]
    edges = 10 * np.concatenate([*inside, bridges[bridges[:, 0] != bridges[:, 1]], pairs])
    papers, vectors = citation_embedding(edges, width=8, iterations=5, seed=0)
    assert papers.tolist() == np.unique(edges).tolist()
    community = papers // 400
    large = papers < 1600
    cosine = (vectors @ vectors.T)[np.ix_(large, large)]
    same = community[large][:, None] == community[large][None, :]
    # 60 pairs could occupy all 8 dimensions; regularisation leaves them to communities.
    assert cosine[same].mean() > 0.7
    assert cosine[~same].mean() < 0.2


def test_the_seed_decides() -> None:
    edges = _random_edges(100, 300, 2)
    first, second = (citation_embedding(edges, width=8, iterations=2, seed=4) for _ in range(2))
    assert first[1].tobytes() == second[1].tobytes()


def test_no_edge_is_an_error() -> None:
    with pytest.raises(DataError, match="no citations to embed"):
        citation_embedding(np.empty((0, 2), np.int64), width=4, iterations=1, seed=0)
