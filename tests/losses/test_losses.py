"""InfoNCE and the false-negative mask against naive double loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.losses import (
    InBatchScores,
    Temperature,
    above_margin,
    false_negatives,
    foreign_negatives,
    info_nce,
    repeated_candidates,
    similarity_matrix,
    triplet_margin,
)

FLOAT64 = 1e-10


def random_values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


@given(batches(), st.data())
def test_one_column_of_each_candidate_stays(
    case: tuple[list[int], list[int], list[list[int]]], data: st.DataObject
) -> None:
    candidates, targets, _ = case
    columns = st.integers(0, len(candidates) - 1)
    own = data.draw(st.dictionaries(st.integers(0, len(targets) - 1), columns))
    mask = repeated_candidates(
        torch.tensor(candidates),
        torch.tensor(targets),
        torch.tensor(list(own), dtype=torch.long),
        torch.tensor(list(own.values()), dtype=torch.long),
    )
    for row, target in enumerate(targets):
        kept = {}
        for column, candidate in enumerate(candidates):
            kept.setdefault(candidate, column)
        if row in own:
            kept[candidates[own[row]]] = own[row]
        kept[candidates[target]] = target
        assert mask[row].logical_not().nonzero()[:, 0].tolist() == sorted(kept.values())


def test_masks_of_no_queries_and_of_no_candidates() -> None:
    none = torch.zeros(0, dtype=torch.long)
    ids = torch.tensor([3, 3, 4])
    assert false_negatives(ids, none, none, none).shape == (0, 3)
    assert repeated_candidates(ids, none, none, none).shape == (0, 3)
    assert repeated_candidates(none, none, none, none).shape == (0, 0)
    assert false_negatives(none, none, none, none).shape == (0, 0)


@given(batches(), st.floats(0.05, 5))
def test_loss_equals_equation_2(
    case: tuple[list[int], list[int], list[list[int]]], temperature: float
) -> None:
    candidates, targets, known = case
    scores = random_values(len(targets), len(candidates))
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
        assert float(losses[row]) == pytest.approx(expected, rel=FLOAT64, abs=FLOAT64)


def test_similarities_against_their_definitions() -> None:
    q, c = random_values(3, 5), random_values(4, 5, seed=1)
    for i in range(3):
        for j in range(4):
            dot = float((q[i] * c[j]).sum())
            norms = float(q[i].norm() * c[j].norm())
            distance = float((q[i] - c[j]).norm())
            for name, value in (("dot", dot), ("cosine", dot / norms), ("l2", -distance)):
                score = float(similarity_matrix(q, c, name)[i, j])  # type: ignore[arg-type]
                assert score == pytest.approx(value, abs=FLOAT64)


@pytest.mark.parametrize("spread", [1.0, 2e-3, 1e-5])
def test_small_distances_keep_their_digits_and_gradients(spread: float) -> None:
    """Close embeddings of norm 15, like SPECTER's triplets after training."""
    generator = torch.Generator().manual_seed(4)
    q = 0.55 * torch.randn(768, generator=generator) + torch.zeros(64, 1)
    c = (q + spread * torch.randn(64, 768, generator=generator)).requires_grad_()
    # More than 25 rows: there torch.cdist multiplies.
    distances = -similarity_matrix(q, c, "l2")
    (gradient,) = torch.autograd.grad(distances.diag().sum(), c)
    apart = c.detach().double() - q.double()
    wanted = apart.norm(dim=1)
    # The result is rounded to float32. Its square is the remainder of two float64 sums of norm
    # 15**2, off by sqrt(768) * 2**-53 of them.
    error = 2.0**-24 * wanted + 768**0.5 * 2.0**-53 * 15**2 / wanted
    assert ((distances.diag().double() - wanted).abs() <= error).all()
    torch.testing.assert_close(gradient.double(), apart / wanted[:, None], rtol=1e-4, atol=1e-5)


def naive_triplet(
    scores: list[list[float]], targets: list[int], masked: list[list[bool]], margin: float
) -> list[float]:
    losses = []
    for row, target in enumerate(targets):
        hinges = [
            max(score - scores[row][target] + margin, 0.0)
            for column, score in enumerate(scores[row])
            if column != target and not masked[row][column]
        ]
        losses.append(sum(hinges) / len(hinges) if hinges else 0.0)
    return losses


@given(batches(), st.floats(0.05, 5))
def test_triplet_margin_equals_a_double_loop(
    case: tuple[list[int], list[int], list[list[int]]], margin: float
) -> None:
    candidates, targets, known = case
    scores = random_values(len(targets), len(candidates))
    masked = [
        [c != t and candidate in ids for c, candidate in enumerate(candidates)]
        for t, ids in zip(targets, known, strict=True)
    ]
    batch = InBatchScores(scores, torch.tensor(targets), torch.tensor(masked))
    expected = naive_triplet(scores.tolist(), targets, masked, margin)
    assert triplet_margin(batch, margin).tolist() == pytest.approx(expected, abs=FLOAT64)


def test_triplet_of_l2_scores_is_specters_loss() -> None:
    """SPECTER's equations 2 and 3, as implemented by PyTorch."""
    q, positive, negative = random_values(3, 5, 8, seed=2)
    scores = similarity_matrix(q, torch.cat([positive, negative]), "l2")
    rows, targets = torch.arange(5), torch.arange(5)
    masked = foreign_negatives(targets, rows, rows + 5, 10)
    ours = triplet_margin(InBatchScores(scores, targets, masked), 1.0)
    theirs = torch.nn.functional.triplet_margin_loss(
        q, positive, negative, margin=1.0, eps=0.0, reduction="none"
    )
    assert float(theirs.max()) > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=FLOAT64)


def test_info_nce_of_cosines_is_multiple_negatives_ranking() -> None:
    """Scale 20 over positives and hard negatives: the loss known elsewhere as MNRL."""
    q, positive, negative = random_values(3, 5, 8, seed=3)
    columns = torch.cat([positive, negative])
    cosines = torch.nn.functional.cosine_similarity(q[:, None], columns[None], dim=-1)
    theirs = torch.nn.functional.cross_entropy(20 * cosines, torch.arange(5))
    nothing = torch.zeros(5, 10, dtype=torch.bool)
    batch = InBatchScores(similarity_matrix(q, columns, "cosine"), torch.arange(5), nothing)
    assert float(info_nce(batch, 0.05).mean()) == pytest.approx(float(theirs), abs=FLOAT64)


def test_triplet_gradient_is_zero_for_negatives_beyond_the_margin_and_masked_ones() -> None:
    scores = torch.tensor([[3.0, 2.5, 1.0, 9.0]], requires_grad=True)
    masked = torch.tensor([[False, False, False, True]])
    triplet_margin(InBatchScores(scores, torch.tensor([0]), masked), 1.0).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-0.5, 0.5, 0.0, 0.0]]


@given(batches(), st.floats(-2, 2))
def test_margin_mask_equals_a_double_loop(
    case: tuple[list[int], list[int], list[list[int]]], margin: float
) -> None:
    candidates, targets, _ = case
    # Halves, so that float32 and Python agree about ties.
    margin = round(margin * 2) / 2
    generator = torch.Generator().manual_seed(len(candidates))
    scores = torch.randint(-4, 5, (len(targets), len(candidates)), generator=generator) / 2
    nothing = torch.zeros(scores.shape, dtype=torch.bool)
    mask = above_margin(InBatchScores(scores, torch.tensor(targets), nothing), margin)
    assert mask.tolist() == [
        [
            column != target and float(score) > float(scores[row, target]) - margin
            for column, score in enumerate(scores[row])
        ]
        for row, target in enumerate(targets)
    ]


def test_queries_without_a_hard_negative_keep_the_easy_ones() -> None:
    mask = foreign_negatives(
        torch.tensor([1, 2]), rows_H=torch.tensor([1]), columns_H=torch.tensor([4]), candidates=5
    )
    assert mask.tolist() == [[False] * 5, [True, True, False, True, False]]


def test_learned_temperature_starts_as_given_and_has_the_gradient_of_its_formula() -> None:
    learned = Temperature(0.05)
    value = learned()
    assert float(value.detach()) == pytest.approx(0.05)
    value.sum().backward()
    # d(initial * exp(x)) / dx at 0 is initial.
    assert float(learned.log_ratio.grad) == pytest.approx(0.05)
