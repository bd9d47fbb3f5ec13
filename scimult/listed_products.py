"""Products of listed pairs of vectors, or of a few vectors with all others: float32, on a CPU.

Each product depends on its two vectors alone, and is the same bit by bit whichever function here
computes it. faiss multiplies where it can (`docs/decisions/search.md`). No gradients.

Shape legend: N, M rows, D width, P listed pairs, K results.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.types import FloatArray, IntArray


def may_use_faiss() -> bool:
    """Return whether torch and faiss can both run here.

    Elsewhere each brings an OpenMP library of its own, and the second one ends the process.
    """
    return sys.platform == "linux"


def products_of_all(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Return ``x @ y.T``, shape ``(N, M)``, contiguous, for few rows of y; as in `products_at`."""
    pairs = _all_pairs(len(x_ND), len(y_MD))
    return _products_at(x_ND, y_MD, *pairs).view(len(x_ND), len(y_MD))


def products_at(x_ND: Tensor, y_MD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    """Return ``x[rows] · y[columns]`` of the listed pairs, shape ``(P,)``.

    No rows are copied; ascending rows are read fastest.

    Parameters
    ----------
    x_ND, y_MD : Tensor
        float32, of equal width, contiguous.
    rows_P, columns_P : Tensor
        int64 row numbers of x and y.
    """
    if not len(rows_P):
        return torch.zeros(0, dtype=torch.float32)
    for numbers_P, count in ((rows_P, len(x_ND)), (columns_P, len(y_MD))):
        least, most = torch.aminmax(numbers_P)
        assert 0 <= least <= most < count, "no row has this number"
    return _products_at(x_ND, y_MD, rows_P, columns_P)


def largest_products(x_ND: FloatArray, y_MD: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
    """Return the ``k`` largest products of each row of y, descending, and their rows of x.

    Both have shape ``(M, K)``. Equal products come in any order. Call it where `may_use_faiss`.

    Parameters
    ----------
    x_ND, y_MD : FloatArray
        float32, of equal width, contiguous; no product may overflow.
    k : int
        At least 1 and at most N.
    """
    values_MK = np.empty((len(y_MD), k), dtype=np.float32)
    rows_MK = np.empty((len(y_MD), k), dtype=np.int64)
    with faiss_with_our_threads() as library:
        x, y, values, rows = map(library.swig_ptr, (x_ND, y_MD, values_MK, rows_MK))
        sizes = x_ND.shape[1], len(y_MD), len(x_ND), k
        library.knn_inner_product(y, x, *sizes, values, rows)
    return values_MK, rows_MK


def _products_at(x_ND: Tensor, y_MD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    multiply = _products_by_faiss if may_use_faiss() else _products_by_torch
    return multiply(x_ND, y_MD, rows_P, columns_P)


def _products_by_faiss(x_ND: Tensor, y_MD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    products_P = torch.empty(len(rows_P), dtype=torch.float32)
    read = [x.contiguous() for x in (x_ND, rows_P, y_MD, columns_P)]
    with faiss_with_our_threads() as library:
        pointers = [library.swig_ptr(x.numpy()) for x in (*read, products_P)]
        library.pairwise_indexed_inner_product(x_ND.shape[1], len(products_P), *pointers)
    return products_P


@contextmanager
def faiss_with_our_threads() -> Iterator[Any]:
    """Give faiss torch's number of threads inside the block."""
    library = _library()
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(torch.get_num_threads())
    try:
        yield library
    finally:
        library.omp_set_num_threads(before)


@cache
def _library() -> Any:
    return import_module("faiss")  # its types lack what is called here


def _products_by_torch(x_ND: Tensor, y_MD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    """Return the same as entries of a sparse matrix, which torch multiplies without a copy."""
    _silence_sparse_warning()
    order_P = rows_P.argsort()
    counts_N = torch.bincount(rows_P, minlength=len(x_ND))
    starts = F.pad(counts_N.cumsum(0), (1, 0))
    parts = starts, columns_P[order_P], torch.zeros(len(columns_P), dtype=torch.float32)
    pairs = torch.sparse_csr_tensor(*parts, (len(x_ND), len(y_MD)), check_invariants=False)
    products_P = torch.empty(len(rows_P), dtype=torch.float32)
    products_P[order_P] = torch.sparse.sampled_addmm(pairs, x_ND, y_MD.T, beta=0.0).values()
    return products_P


@lru_cache(maxsize=4)
def _all_pairs(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)


@cache
def _silence_sparse_warning() -> None:
    """Trigger and hide torch's one-time warning that sparse tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = torch.zeros(1, dtype=torch.int32)
        torch.sparse_csr_tensor(torch.tensor([0, 1]).int(), zero, torch.zeros(1), (1, 1))
