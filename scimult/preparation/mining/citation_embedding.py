"""Paper vectors from the citation graph (for SciNCL's neighbours).

SciNCL (Ostendorff et al., 2022) trains its citation vectors with PyTorch-BigGraph. We take the
leading singular vectors of the regularised adjacency matrix ``L = D^-1/2 (A + I) D^-1/2`` with
``D = degree + mean degree`` (Qin and Rohe, 2013): the mean degree keeps small components, of
which citation graphs have hundreds, from taking a dimension each. ``docs/decisions/mining.md``
compares methods.

Shape legend: N papers with an edge, D width.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from scimult.errors import DataError
from scimult.types import FloatArray, IntArray


def citation_embedding(
    edges: IntArray, *, width: int, iterations: int, seed: int
) -> tuple[IntArray, FloatArray]:
    """Return the papers with an edge, ascending, and unit vectors of ``width`` at most.

    The cosine of two vectors measures how close the papers are in the citation graph. ``edges`` are
    rows ``(citing, cited)``, whose direction is ignored; ``iterations`` are the power iterations of
    the randomised SVD (Halko et al., 2011).

    Raises
    ------
    DataError
        If there is no edge.
    """
    # Half a second to import, which every preparation would pay.
    from sklearn.utils.extmath import randomized_svd

    if not len(edges):
        raise DataError("no citations to embed", fix="name a source with citations")
    papers_N, nodes = np.unique(edges, return_inverse=True)
    matrix = regularised_adjacency(nodes.reshape(-1, 2), len(papers_N))
    u_ND, s_D, _ = randomized_svd(
        matrix, min(width, len(papers_N)), n_iter=iterations, random_state=seed
    )
    vectors_ND = (u_ND * s_D).astype(np.float32)
    lengths_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return papers_N, vectors_ND / np.maximum(lengths_N, np.finfo(np.float32).tiny)


def citation_components(edges: IntArray) -> IntArray:
    """Return the connected component of each paper of ``citation_embedding``, shape ``(N,)``."""
    papers_N, nodes = np.unique(edges, return_inverse=True)
    first, second = nodes.reshape(-1, 2).T
    ones = np.ones(len(edges), dtype=np.int8)
    graph = sparse.coo_array((ones, (first, second)), shape=(len(papers_N), len(papers_N)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def regularised_adjacency(edges: IntArray, count: int) -> sparse.csr_matrix:
    """Return ``D^-1/2 (A + I) D^-1/2`` of the undirected graph, ``D = degree + mean degree``."""
    ones = np.ones(len(edges), dtype=np.float32)
    directed = sparse.coo_matrix((ones, (edges[:, 0], edges[:, 1])), shape=(count, count)).tocsr()
    adjacency = directed.maximum(directed.T)
    adjacency.data[:] = 1
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = sparse.diags((degree + degree.mean()) ** -0.5)
    return (scale @ (adjacency + sparse.identity(count, dtype=np.float32)) @ scale).tocsr()
