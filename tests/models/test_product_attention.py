"""Attention by products, and its own backward pass, against a softmax and autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scimult.models import product_attention
from scimult.models.dropout import scaled_mask
from scimult.models.product_attention import attend_by_products
from tests.models.variants import FLOAT64

ROWS, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 7, 9, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(queries: int = QUERIES, keys: int = KEYS) -> list[Tensor]:
    """Return queries, keys and values, as views whose heads lie side by side."""
    lengths = (queries, keys, keys)
    return [
        drawn(ROWS, length, HEADS, WIDTH, seed=seed).transpose(1, 2)
        for seed, length in enumerate(lengths)
    ]


def by_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
    if mask is not None:
        scores = scores + torch.where(mask, 0.0, float("-inf"))
    weights = scores.softmax(-1).to(q.dtype)
    if dropout:
        weights = weights * scaled_mask(weights, dropout)
    mixed: Tensor = weights @ v
    return mixed


def with_gradients(
    attend: object, tensors: list[Tensor], *options: object, size: float = 1.0
) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values, for those of a size."""
    assert callable(attend)
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    torch.manual_seed(5)
    output = attend(*leaves, *options)
    weights = size * drawn(*output.shape, seed=9).to(output.dtype)
    torch.autograd.backward((output * weights).sum())
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


MASKS = {
    "all keys": None,
    "padding": torch.arange(KEYS) < torch.tensor([9, 4, 1])[:, None, None, None],
    "a window": (torch.arange(KEYS) - torch.arange(QUERIES)[:, None]).abs()[None, None] <= 2,
}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_are_those_of_a_softmax(mask: str, dropout: float) -> None:
    """Both draw the same dropout from one seed."""
    options = (MASKS[mask], dropout)
    ours = with_gradients(attend_by_products, inputs(), *options)
    expected = with_gradients(by_softmax, inputs(), *options)
    assert len(ours) == len(expected) == 4
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).abs().max() <= FLOAT64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [5, 60, 300])
def test_short_types_are_about_as_exact_as_with_a_softmax_in_float32(
    length: int, dtype: torch.dtype
) -> None:
    """Three quarters more at most; of a whole step, 1.74 and 1.78 % (decisions/models.md)."""
    tensors = [tensor.to(dtype) for tensor in inputs(length, length)]
    if dtype == torch.float16:
        # Moves all scores by -22, which changes no weight, to where exponentials would be 0.
        tensors[0][..., 0], tensors[1][..., 0] = WIDTH, -8
    expected = with_gradients(by_softmax, [tensor.double() for tensor in tensors], None, 0.0)
    ours, theirs = (
        with_gradients(attend, tensors, None, 0.0) for attend in (attend_by_products, by_softmax)
    )
    for one, other, exact in zip(ours, theirs, expected, strict=True):
        assert one.dtype == dtype
        assert (one - exact).norm() <= 1.75 * (other - exact).norm()
        assert (one - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize("mask", ["all keys", "padding"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("largest", [1.0, 60.0, 90.0, 500.0, -500.0])
def test_the_largest_score_is_taken_off_where_exponentials_leave_the_range(
    largest: float, dtype: torch.dtype, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores far from, near and beyond e^88, float32's and bfloat16's largest number."""
    tensors = [tensor / 2 for tensor in inputs()]
    # One feature of queries and keys that moves all scores alike, which changes no weight.
    tensors[0][..., 0], tensors[1][..., 0] = WIDTH, largest / WIDTH**0.5
    tensors = [tensor.to(dtype) for tensor in tensors]
    shifted: list[bool] = []
    shift = product_attention._shifted_exponentials

    def noted(scores: Tensor, mask: Tensor | None) -> Tensor:
        shifted.append(True)
        return shift(scores, mask)

    monkeypatch.setattr(product_attention, "_shifted_exponentials", noted)
    found = with_gradients(attend_by_products, tensors, MASKS[mask], 0.0)
    assert bool(shifted) == (abs(largest) > 70)
    exact = [tensor.double() for tensor in tensors]
    for one, other in zip(found, with_gradients(by_softmax, exact, MASKS[mask], 0.0), strict=True):
        assert one.isfinite().all()
        # A score is rounded to 8 bits: a weight is off by a 256th of the largest score.
        off = 2**-7 + abs(largest) / 128 if dtype == torch.bfloat16 else FLOAT64
        assert (one - other).abs().max() <= off * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("size", [1e-10, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("largest", [[0, 0, 0], [-30, 0, 70], [70, 70, 70], [-30, -30, -30]])
def test_gradients_of_any_size_pass_large_and_small_scores(
    largest: list[float], size: float
) -> None:
    """bfloat16 ends at 1e-38 and 1e38: a sum of exponentials may be 1e30, a gradient 1e-10."""
    tensors = [tensor / 2 for tensor in inputs()]
    # Each row's scores are moved, which changes no weight. Powers of two are not rounded.
    tensors[0][..., 0] = torch.tensor(largest)[:, None, None] / 8 * WIDTH**0.5
    tensors[1][..., 0] = 8
    tensors = [tensor.bfloat16() for tensor in tensors]
    exact = with_gradients(by_softmax, [t.double() for t in tensors], None, 0.0, size=size)
    found, usual = (
        with_gradients(attend, tensors, None, 0.0, size=size)
        for attend in (attend_by_products, by_softmax)
    )
    for one, other, wanted in zip(found, usual, exact, strict=True):
        # Rounding errors of a query's scores, which add up here, do not cancel.
        assert (one - wanted).norm() <= 3 * (other - wanted).norm()


@pytest.mark.parametrize(("dropout", "most"), [(0.0, 1), (0.1, 2)])
def test_of_pairs_of_tokens_only_exponentials_are_kept(dropout: float, most: int) -> None:
    """What `activation_tokens` counts; a softmax keeps two copies more, one in float32."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor
        return tensor

    tensors = [tensor.bfloat16().requires_grad_() for tensor in inputs(40, 40)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attend_by_products(*tensors, None, dropout)
    pairs = [t for t in kept.values() if t.shape[-2:] == (40, 40)]
    assert [tensor.dtype for tensor in pairs] == [torch.bfloat16] * most


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_outputs_with_and_without_gradients_are_equal(dtype: torch.dtype) -> None:
    """The embedding cache's second pass must repeat its first, dropout included."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs()]
    torch.manual_seed(3)
    with torch.no_grad():
        first = attend_by_products(*leaves, MASKS["padding"], 0.3)
    torch.manual_seed(3)
    assert torch.equal(attend_by_products(*leaves, MASKS["padding"], 0.3), first)


def test_a_second_derivative_is_refused() -> None:
    leaves = [tensor.requires_grad_() for tensor in inputs()]
    output = attend_by_products(*leaves, None, 0.0).square().sum()
    (gradient,) = torch.autograd.grad(output, leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())
