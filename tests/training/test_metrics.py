"""Statistics of queries against loops over queries and candidates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.losses.contrastive import InBatchScores
from scimult.training.metrics import (
    STATISTICS,
    add_sums,
    means_by_task,
    query_statistics,
    target_statistics,
    total,
)


def sums_of(queries: float, loss: float, *ranked: float) -> list[float]:
    """Return the statistics of ranked queries."""
    found = [queries, loss, queries, *ranked]
    return found + [0.0] * (len(STATISTICS) - len(found))


@st.composite
def batches(draw: st.DrawFn) -> tuple[InBatchScores, list[float], list[int], list[int]]:
    """Draw scores with ties and masks, and hard negatives in any column."""
    queries, candidates = draw(st.integers(1, 5)), draw(st.integers(5, 9))
    # Quarters are exact in float32, and ties are common.
    score = st.integers(-8, 8).map(lambda number: number / 4)
    scores = [[draw(score) for _ in range(candidates)] for _ in range(queries)]
    targets = draw(st.permutations(range(candidates)))[:queries]
    masked = [
        [column != target and draw(st.booleans()) for column in range(candidates)]
        for target in targets
    ]
    rows, columns = [], []
    for row, target in enumerate(targets):
        others = [column for column in range(candidates) if column != target]
        for column in draw(st.lists(st.sampled_from(others), max_size=2, unique=True)):
            rows.append(row)
            columns.append(column)
    batch = InBatchScores(torch.tensor(scores), torch.tensor(targets), torch.tensor(masked))
    return batch, [draw(score) for _ in range(queries)], rows, columns


@given(batches())
def test_statistics_equal_loops(
    drawn: tuple[InBatchScores, list[float], list[int], list[int]],
) -> None:
    batch, losses, rows, columns = drawn
    found = query_statistics(
        batch,
        torch.tensor(losses),
        torch.tensor(rows, dtype=torch.long),
        torch.tensor(columns, dtype=torch.long),
    )
    for row, target in enumerate(batch.targets_B.tolist()):
        scores, masked = batch.scores_BC[row].tolist(), batch.masked_BC[row].tolist()
        negatives = [s for c, s in enumerate(scores) if c != target and not masked[c]]
        own = [c for r, c in zip(rows, columns, strict=True) if r == row and not masked[c]]
        wins = any(scores[c] >= scores[target] for c in own)
        kept = [-math.inf if masked[c] else s for c, s in enumerate(scores)]
        correct = kept.index(max(kept)) == target
        margin = scores[target] - max(negatives) if negatives else 0.0
        expected = [correct, bool(negatives), margin, bool(own), wins]
        assert found[row].tolist() == sums_of(1, losses[row], *expected)


def test_means_weigh_queries_and_not_micro_batches() -> None:
    # Of "search", one micro-batch with a hard negative for one of two queries, and one with a
    # single query; "links" has neither negatives nor hard ones.
    mixed = {"search": sums_of(2, 6, 1, 2, 3, 1, 1), "links": sums_of(1, 7, 1, 0, 0, 0, 0)}
    alone = {"search": sums_of(1, 6, 0, 1, 0, 1, 0)}
    sums = add_sums([mixed, alone])
    means = means_by_task(sums)
    assert list(means) == ["links", "search"]
    assert means["links"] == {"loss": 7, "accuracy": 1}
    assert means["search"] == pytest.approx(
        {"loss": 4, "accuracy": 1 / 3, "margin": 1, "hard_wins": 0.5}
    )
    assert total(sums) == pytest.approx(
        {"loss": 19 / 4, "accuracy": 1 / 2, "margin": 1, "hard_wins": 0.5}
    )


@pytest.mark.parametrize("numbers", [[0.1] * 3, [2012.0] * 7, [0.3], [0.1] * 6])
def test_equal_numbers_have_no_r2(numbers: list[float]) -> None:
    """In floating point the mean of squares exceeds the square of the mean."""
    targets = torch.tensor(numbers, dtype=torch.float64)
    outputs = targets[:, None] + 0.5
    sums = target_statistics("regression", outputs, targets, (outputs[:, 0] - targets).square())
    assert "r2" not in means_by_task({"task": sums.tolist()})["task"]
