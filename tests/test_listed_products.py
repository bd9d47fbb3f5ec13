"""Products that depend on two vectors alone. Legend: N, M rows, D width, P pairs, K results."""

from __future__ import annotations

import warnings

import faiss
import numpy as np
import pytest
import torch

from scimult import listed_products
from scimult.listed_products import largest_products, products_at
from scimult.products import FEW, products
from tests.torch_threads import torch_threads


def _rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("few", range(1, FEW + 1))
@pytest.mark.parametrize("by_faiss", [True, False])
def test_few_rows_have_the_products_of_listed_pairs(
    few: int, by_faiss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_products, "may_use_faiss", lambda: by_faiss)
    x_ND, y_MD = _rows(50, 33, 3), _rows(few, 33, 4)
    whole_NM = products(x_ND, y_MD)
    # Sums of 33 products of a few units.
    torch.testing.assert_close(whole_NM, x_ND @ y_MD.T, rtol=0, atol=33 * 2.0**-24 * 30)
    pairs_P = torch.from_numpy(np.random.default_rng(5).permutation(50 * few)[:40])
    rows_P, columns_P = pairs_P // few, pairs_P % few
    found_P = products_at(x_ND, y_MD, rows_P, columns_P)
    assert torch.equal(found_P, whole_NM[rows_P, columns_P])
    assert not len(products_at(x_ND, y_MD, rows_P[:0], columns_P[:0]))
    # Transposed matrices are copied.
    turned = x_ND.T.contiguous().T, y_MD.T.contiguous().T
    assert torch.equal(products(*turned), whole_NM)
    assert torch.equal(products_at(*turned, rows_P, columns_P), found_P)


def test_pairs_take_the_threads_of_torch() -> None:
    before = faiss.omp_get_max_threads()
    x_ND, y_MD = _rows(50, 33, 3), _rows(2, 33, 4)
    with torch_threads(torch.get_num_threads() + 1):
        several_NM = products(x_ND, y_MD)
    assert torch.equal(products(x_ND, y_MD), several_NM)
    assert faiss.omp_get_max_threads() == before


@pytest.mark.parametrize(("row", "column"), [(-1, 0), (50, 0), (0, 2)])
def test_pairs_of_no_row_are_not_read(row: int, column: int) -> None:
    numbers = torch.tensor([row]), torch.tensor([column])
    with pytest.raises(AssertionError, match="no row has this number"):
        products_at(_rows(50, 33, 3), _rows(2, 33, 4), *numbers)


def test_nobody_hears_that_sparse_tensors_are_in_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_products, "may_use_faiss", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        products(_rows(4, 8, 8), _rows(1, 8, 9))


@pytest.mark.parametrize("few", range(1, FEW + 1))
@pytest.mark.parametrize("width", [1, 2, 4, 8, 12, 33, 384])
def test_the_largest_products_are_those_of_pairs(few: int, width: int) -> None:
    """faiss computes some widths otherwise in one function than in the other."""
    x_ND, y_MD = _rows(300, width, 10), _rows(few, width, 11)
    values_MK, rows_MK = largest_products(x_ND.numpy(), y_MD.numpy(), 120)
    whole_MN = products(x_ND, y_MD).T.numpy()
    assert np.array_equal(values_MK, -np.sort(-whole_MN, axis=1)[:, :120])
    assert np.array_equal(np.take_along_axis(whole_MN, rows_MK, axis=1), values_MK)
