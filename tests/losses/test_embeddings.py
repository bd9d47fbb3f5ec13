"""Losses on embeddings against numpy and loops, at their zeros, and over ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize
from torch import Tensor

from scimult import distributed
from scimult.losses import (
    Projection,
    cosine_distance,
    fitted_projection,
    mean_over_pairs,
    relational_distance,
)
from scimult.losses import embeddings as embeddings_module
from tests.ranks import run_ranks

# Both sides compute in float64.
EXACT = 1e-12
SIZES = st.integers(1, 7)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@given(st.integers(0, 10_000), SIZES, st.integers(2, 9))
def test_cosine_distance_is_that_of_sklearn(seed: int, texts: int, width: int) -> None:
    student, teacher = normal(seed, texts, width), 3 * normal(seed + 1, texts, width)
    expected = 1 - np.diag(cosine_similarity(student.numpy(), teacher.numpy()))
    np.testing.assert_allclose(cosine_distance(student, teacher), expected, rtol=0, atol=EXACT)


@given(st.integers(0, 10_000), SIZES, SIZES, st.integers(2, 5), st.integers(2, 9))
def test_relational_distance_is_a_double_loop(
    seed: int, texts: int, others: int, width: int, teacher_width: int
) -> None:
    ours, theirs = normal(seed, texts + others, width), normal(seed, texts + others, teacher_width)
    found = relational_distance(ours[:texts], ours, theirs[:texts], theirs)
    for row in range(texts):
        total = 0.0
        for column in range(texts + others):
            pair = [row, column]
            first, second = (
                float(np.prod([1 / np.linalg.norm(x[i]) for i in pair]) * (x[row] @ x[column]))
                for x in (ours.numpy(), theirs.numpy())
            )
            total += (first - second) ** 2
        assert found[row].item() == pytest.approx(total / (texts + others), abs=EXACT)


@pytest.mark.parametrize("scale", [1.0, 7.5])
def test_a_model_that_is_its_own_teacher_does_not_change(scale: float) -> None:
    """Loss and gradient are 0 up to rounding, and exactly 0 for identical vectors."""
    student = normal(0, 20, 16).requires_grad_()
    teacher = scale * student.detach()
    for loss in (
        cosine_distance(student, teacher),
        relational_distance(student, student, teacher, teacher),
    ):
        (gradient,) = torch.autograd.grad(loss.sum(), student)
        limit = 0.0 if scale == 1 else 1e-15
        assert loss.abs().max() <= limit
        assert gradient.abs().max() <= limit


def test_half_the_squared_distance_is_exact_where_one_minus_the_cosine_is_noise() -> None:
    """Float32 preserves the loss of texts 1e-4 apart; 1 - cosine would round to 0."""
    student = normal(0, 50, 64)
    teacher = student + 1e-4 * normal(1, 50, 64)
    exact = cosine_distance(student, teacher)
    single = cosine_distance(student.float(), teacher.float())
    # Unit vectors have errors of 2^-24 per number, against differences of about 1e-4 / 8.
    torch.testing.assert_close(single.double(), exact, rtol=0.02, atol=0)
    rounded = 1 - torch.nn.functional.cosine_similarity(student.float(), teacher.float())
    assert (rounded - exact).abs().max() > 0.5 * exact.min()


def test_relations_do_not_see_a_rotation_or_the_width() -> None:
    student = normal(0, 12, 6)
    rotation = torch.linalg.qr(normal(1, 9, 9)).Q[:6]
    turned = 4 * student @ rotation
    assert relational_distance(student, student, turned, turned).max() < 1e-28
    assert relational_distance(student, student, turned.flip(1), turned).min() > 1e-3


def test_gradients_are_those_of_finite_differences() -> None:
    student, others = normal(0, 4, 3).requires_grad_(), normal(1, 5, 3).requires_grad_()
    teacher, theirs = normal(2, 4, 6), normal(3, 5, 6)
    assert torch.autograd.gradcheck(lambda x: cosine_distance(x, teacher[:, :3]), student)
    assert torch.autograd.gradcheck(
        lambda x, y: relational_distance(x, y, teacher, theirs), (student, others)
    )


def test_a_query_has_the_mean_of_its_two_or_three_texts() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    # Query 1 has a hard negative; text 2 is the positive of both.
    found = mean_over_pairs(
        losses, torch.tensor([0, 1]), torch.tensor([2, 2, 4]), torch.tensor([1])
    )
    assert found.tolist() == [2.5, pytest.approx(22 / 3)]


@pytest.mark.parametrize("texts", [5, 200])  # fewer than dimensions, and more
def test_the_fitted_map_is_ridge_regression(texts: int) -> None:
    student, teacher = normal(0, texts, 8).numpy(), normal(1, texts, 11).numpy()
    ridge = embeddings_module._RIDGE * texts / 8
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(normalize(student), normalize(teacher))
    found = fitted_projection(5 * student, 3 * teacher)
    assert found.shape == (11, 8)
    assert found.is_contiguous()
    # The result is rounded to float32.
    np.testing.assert_allclose(found, expected.coef_, rtol=1e-6, atol=1e-7)


def test_the_value_of_a_map_is_a_separate_tensor() -> None:
    """The value must be a copy: the embedding cache must not share the parameter."""
    projection = Projection(normal(0, 3, 2).float())
    value = projection()
    assert value.data_ptr() != projection.weight.data_ptr()
    value.sum().backward()
    assert projection.weight.grad is not None
    assert projection.weight.grad.tolist() == [[1.0, 1.0]] * 3


def of_this_rank() -> tuple[float, Tensor]:
    """Return this rank's share of the mean loss over four pairs, and its gradients."""
    rank, world = distributed.rank(), distributed.world_size()
    student, teacher = normal(0, 11, 4).requires_grad_(), normal(1, 11, 6)
    # Text 10 is the positive of queries 0 and 3: both ranks encode it.
    positives, negatives = [10, 5, 6, 10], {1: 8, 2: 9, 3: 8}
    mine = range(4 * rank // world, 4 * (rank + 1) // world)
    hard = [(row, negatives[query]) for row, query in enumerate(mine) if query in negatives]
    candidates = [positives[query] for query in mine] + [text for _, text in hard]
    texts, places = np.unique([*mine, *candidates], return_inverse=True)
    query_B, candidate_C = torch.from_numpy(places).split([len(mine), len(candidates)])
    columns = torch.from_numpy(places)
    sizes = distributed.all_gather_objects(len(columns))
    ours, theirs = student[texts], teacher[texts]
    losses = cosine_distance(ours, theirs[:, :4]) + relational_distance(
        ours,
        distributed.gather_rows(ours[columns], sizes)[0],
        theirs,
        distributed.gather_rows(theirs[columns], sizes)[0],
    )
    rows_H = torch.tensor([row for row, _ in hard], dtype=torch.long)
    loss = mean_over_pairs(losses, query_B, candidate_C, rows_H).sum() * (world / 4)
    loss.backward()
    assert student.grad is not None
    return loss.item(), student.grad


@pytest.mark.ranks
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    (first, ours), (second, theirs) = run_ranks(of_this_rank, 2, tmp_path)
    loss, gradient = of_this_rank()
    assert (first + second) / 2 == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close((ours + theirs) / 2, gradient, rtol=0, atol=EXACT)
