"""Keys and the selection of the best. Legend: Q queries, B columns of a block, K results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scimult.errors import DataError
from scimult.retrieval import selection
from scimult.retrieval.selection import (
    GROUP,
    FixedBest,
    ThresholdBest,
    keys_of,
    lists_of,
    places_of_keys,
    scores_of,
)


@pytest.fixture(autouse=True, scope="module")
def as_with_many_scores() -> Iterator[None]:
    """Devices compare groups first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_FEW_SCORES", 0)
        yield


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40),
    st.integers(0, 2**16),
)
def test_keys_are_ordered_by_score_then_place(scores: list[float], seed: int) -> None:
    places = torch.from_numpy(np.random.default_rng(seed).permutation(len(scores)))
    values = torch.tensor(scores, dtype=torch.float32)
    keys = keys_of(values, places)
    wanted = sorted(range(len(scores)), key=lambda i: (-float(values[i]), int(places[i])))
    assert keys.sort(descending=True).indices.tolist() == wanted
    assert torch.equal(scores_of(keys), values)
    assert torch.equal(places_of_keys(keys), places)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n_queries=st.integers(1, 4),
    blocks=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    k=st.integers(0, 30),
    distinct=st.sampled_from([1, 3, 50, 10**6]),
    rising=st.booleans(),
    fixed=st.booleans(),
)
def test_the_best_of_blocks_are_the_best_of_all(
    seed: int,
    n_queries: int,
    blocks: list[int],
    k: int,
    distinct: int,
    rising: bool,
    fixed: bool,
) -> None:
    rng = np.random.default_rng(seed)
    total = sum(blocks)
    scores_QC = rng.integers(-distinct, distinct + 1, (n_queries, total)).astype(np.float32)
    scores_QC[rng.random(scores_QC.shape) < 0.1] = -np.inf
    if rising:
        scores_QC.sort(axis=1)
    places_C = rng.permutation(total)
    best = FixedBest(k) if fixed else ThresholdBest(n_queries, k)
    start = 0
    for width in blocks:
        padded_QB = np.full((n_queries, -(-width // GROUP) * GROUP), -np.inf, np.float32)
        padded_QB[:, :width] = scores_QC[:, start : start + width]
        scores_QB = torch.from_numpy(padded_QB)
        if start % 2:
            scores_QB = scores_QB.T.contiguous().T
        best.add(scores_QB, torch.from_numpy(places_C[start : start + width]))
        start += width
    keys = best.keys()
    assert fixed or not best.open_queries().any()
    found_QK, found_places_QK = (x.numpy() for x in lists_of(keys, k))
    # Where more are tied than a device keeps, its list is open.
    for query in np.flatnonzero(~best.open_queries().numpy()):
        order = np.lexsort((places_C, -scores_QC[query]))[:k]
        order = order[np.isfinite(scores_QC[query, order])]
        assert found_places_QK[query, : len(order)].tolist() == places_C[order].tolist()
        assert found_QK[query, : len(order)].tolist() == scores_QC[query, order].tolist()
        assert (found_places_QK[query, len(order) :] == -1).all()
        assert np.isneginf(found_QK[query, len(order) :]).all()


def test_a_device_says_where_ties_are_open() -> None:
    best = FixedBest(3)
    scores_QB = torch.zeros(2, 16 * 400)
    scores_QB[0, :9] = torch.arange(9.0)
    best.add(scores_QB, torch.arange(16 * 400))
    assert lists_of(best.keys(), 3)[1][0].tolist() == [8, 7, 6]
    assert best.open_queries().tolist() == [False, True]


class _Operations(TorchDispatchMode):
    """Counts operations on the meta device that are not views."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        touched = tree_leaves((args, result))
        self.count += not func.is_view and any(
            isinstance(item, torch.Tensor) and item.is_meta for item in touched
        )
        return result


def test_a_device_never_waits_for_the_host_and_does_little() -> None:
    """The meta device has no numbers: reading one, or a size that depends on one, fails.

    For few queries its time is that of starting operations, so they are few: peaks, two lists of
    the best with their places, and from the second block on one more to join them.
    """
    best = FixedBest(5, slack_Q=torch.ones(8), rounding=2**-8)
    for width, most in ((4096, 9), (4096, 13), (96, 8)):
        scores_QB = torch.empty(8, width, device="meta")
        places_B = torch.empty(width, dtype=torch.long, device="meta")
        with _Operations() as operations:
            best.add(scores_QB, places_B)
        assert operations.count <= most


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("nan")])
def test_scores_that_are_not_finite_are_refused(bad: float, fixed: bool) -> None:
    scores_QB = torch.randn(2, 64)
    scores_QB[1, 37] = bad
    best = FixedBest(3) if fixed else ThresholdBest(2, 3)
    with pytest.raises(DataError, match="a score is not finite in 1 of"):
        best.add(scores_QB, torch.arange(64))
        best.keys()


def test_scores_within_the_slack_are_kept() -> None:
    scores_QB = torch.tensor([[5.0, 4.0, 3.0, 2.5, 1.0, 0.0, -1.0, -9.0]])
    slack_Q = torch.tensor([1.5])
    for best in (ThresholdBest(1, 2, slack_Q=slack_Q), FixedBest(2, slack_Q=slack_Q)):
        best.add(scores_QB, torch.arange(8))
        assert {5.0, 4.0, 3.0, 2.5} <= set(scores_of(best.keys())[0].tolist())
        assert not best.open_queries().any()
    crowded = ThresholdBest(1, 2, slack_Q=torch.tensor([1.5]), most=3)
    crowded.add(scores_QB, torch.arange(8))
    crowded.keys()
    assert crowded.open_queries().all()
