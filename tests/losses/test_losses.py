"""InfoNCE and the false-negative mask against naive double loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.losses import InBatchScores, false_negatives, info_nce, similarity_matrix
from scimult.losses.info_nce import in_batch_accuracy


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]]]:
    """Candidate ids with duplicates, the column of each positive, known positives per query."""
    candidates = draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    targets = draw(st.lists(st.integers(0, len(candidates) - 1), min_size=1, max_size=6))
    known = [[*draw(st.lists(st.integers(0, 8), max_size=5)), candidates[t]] for t in targets]
    return candidates, targets, known


@given(batches())
def test_mask_equals_a_double_loop(case: tuple[list[int], list[int], list[list[int]]]) -> None:
    candidates, targets, known = case
    expected = [
        [column != target and candidate in ids for column, candidate in enumerate(candidates)]
        for target, ids in zip(targets, known, strict=True)
    ]
    rows = [row for row, ids in enumerate(known) for _ in ids]
    mask = false_negatives(
        torch.tensor(candidates),
        torch.tensor(targets),
        torch.tensor(rows),
        torch.tensor([i for ids in known for i in ids]),
    )
    assert mask.tolist() == expected


@given(batches(), st.floats(0.05, 5))
def test_loss_equals_equation_2(
    case: tuple[list[int], list[int], list[list[int]]], temperature: float
) -> None:
    candidates, targets, known = case
    scores = torch.randn(len(targets), len(candidates), generator=torch.Generator().manual_seed(0))
    masked = torch.tensor(
        [
            [c != t and candidate in ids for c, candidate in enumerate(candidates)]
            for t, ids in zip(targets, known, strict=True)
        ]
    )
    losses = info_nce(InBatchScores(scores, torch.tensor(targets), masked), temperature)
    for row, target in enumerate(targets):
        kept = [float(scores[row, c]) for c in range(len(candidates)) if not masked[row, c]]
        total = sum(math.exp(s / temperature) for s in kept)
        expected = -math.log(math.exp(float(scores[row, target]) / temperature) / total)
        # exp and log in float32 against float64.
        assert float(losses[row]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_similarities_against_their_definitions() -> None:
    generator = torch.Generator().manual_seed(1)
    q, c = torch.randn(3, 5, generator=generator), torch.randn(4, 5, generator=generator)
    for i in range(3):
        for j in range(4):
            dot = float((q[i] * c[j]).sum())
            norms = float(q[i].norm() * c[j].norm())
            distance = float((q[i] - c[j]).norm())
            for name, value in (("dot", dot), ("cosine", dot / norms), ("l2", -distance)):
                score = float(similarity_matrix(q, c, name)[i, j])  # type: ignore[arg-type]
                assert score == pytest.approx(value, abs=1e-5)


def test_accuracy_ignores_masked_columns() -> None:
    scores = torch.tensor([[1.0, 5.0, 0.0], [0.0, 1.0, 2.0]])
    targets = torch.tensor([0, 1])
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert float(in_batch_accuracy(InBatchScores(scores, targets, nothing))) == 0.0
    masked = nothing.clone()
    masked[0, 1] = True
    assert float(in_batch_accuracy(InBatchScores(scores, targets, masked))) == 0.5
