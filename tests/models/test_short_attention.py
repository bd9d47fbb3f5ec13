"""The short rows' kernels against float64, in Triton's interpreter.

Shape legend: T tokens of all rows, L tokens of one row, H heads, K width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

interpreter = pytest.importorskip("triton.runtime.interpreter")

from scimult.models import short_attention  # noqa: E402
from scimult.models.short_attention import attend_short, tables  # noqa: E402

_LENGTHS = (1, 16, 15, 16, 17, 31, 33, 64, 65, 128, 129, 0, 200)
_REAL_PATCH = interpreter._patch_lang_tensor
_SEED = (123 << 40) + 45
# The interpreter multiplies the bits of bfloat16 as if they were integers.
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
_HEADS = 2


@pytest.fixture(autouse=True)
def _numpy_2_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton 3.6's interpreter read scalars, which it keeps as arrays of one element."""

    def patch(tensor: type, scope: Any) -> None:
        _REAL_PATCH(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _kept(start: int, length: int, dropout: float) -> Tensor:
    """Return the weights that dropout keeps in one row, shape ``(H, L, L)``."""
    at = np.arange(length, dtype=np.uint32)
    heads = np.arange(1, _HEADS + 1, dtype=np.uint32)[:, None]
    drawn = _mix((at + np.uint32(start)) ^ np.uint32(_SEED & 0xFFFFFFFF)) ^ np.uint32(_SEED >> 32)
    drawn = _mix(drawn + heads * np.uint32(0x85EBCA77))
    bits = _mix(drawn[..., None] + at * np.uint32(0x9E3779B1)) >> np.uint32(8)
    return torch.from_numpy(bits.astype(np.int64) >= round(dropout * (1 << 24)))


def _naive(qkv: Tensor, lengths: tuple[int, ...], dropout: float) -> Tensor:
    outputs, start = [], 0
    for part in torch.split(qkv, list(lengths)):
        q, k, v = part.permute(1, 2, 0, 3)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        if dropout:
            weights = weights * _kept(start, len(part), dropout) / (1 - dropout)
        outputs.append((weights @ v).transpose(0, 1))
        start += len(part)
    return torch.cat(outputs)


def _error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "dtype", "dropout"),
    [
        (32, torch.float16, 0.0),
        (64, torch.float16, 0.3),
        (16, torch.float32, 0.3),
        (32, torch.float32, 0.3),
        (64, torch.float32, 0.0),
    ],
)
def test_output_and_gradient_equal_float64s(
    monkeypatch: pytest.MonkeyPatch, width: int, dtype: torch.dtype, dropout: float
) -> None:
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor([_SEED]))
    # New memory is filled with NaN: an element that no program writes would show.
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(width)
    low = torch.randn(sum(_LENGTHS), 3, _HEADS, width, generator=generator).to(dtype)
    low.requires_grad_()
    high = low.detach().double().requires_grad_()
    weights = torch.randn(sum(_LENGTHS), _HEADS, width, generator=generator).to(dtype)
    output = attend_short(low, tables(np.array(_LENGTHS), "cpu"), dropout)
    torch.autograd.backward(output, weights)
    torch.use_deterministic_algorithms(False)
    expected = _naive(high, _LENGTHS, dropout)
    torch.autograd.backward(expected, weights.double())
    assert low.grad is not None
    assert high.grad is not None
    assert _error(output.detach(), expected.detach()) < _TOLERANCE[dtype]
    assert _error(low.grad, high.grad) < _TOLERANCE[dtype]


def test_recomputed_dropout_draws_the_same_mask() -> None:
    """Recomputed activations and the embedding cache restore torch's random state."""
    lengths = np.array([3, 20])
    qkv = torch.randn(lengths.sum(), 3, 1, 16).requires_grad_()

    def attended(seed: int, again: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        rows = tables(lengths, "cpu")
        if again:
            output = checkpoint(attend_short, qkv, rows, 0.5, use_reentrant=False)
        else:
            output = attend_short(qkv, rows, 0.5)
        torch.rand(7)  # What is drawn until the backward pass must not matter.
        return output.detach(), torch.autograd.grad(output.square().sum(), qkv)[0]

    once, twice, other = attended(1, again=False), attended(1, again=True), attended(2, again=False)
    for plain, recomputed in zip(once, twice, strict=True):
        assert torch.equal(plain, recomputed)
    assert not torch.equal(once[0], other[0])


def test_the_first_trial_may_be_within_anything(caplog: pytest.LogCaptureFixture) -> None:
    def trial(x: Tensor) -> Tensor:
        assert short_attention._starts(torch.device("cpu"), torch.float32, 16), caplog.text
        return x.exp()

    trial(torch.ones(1))
    with torch.inference_mode():
        trial(torch.ones(1))
    checkpoint(trial, torch.ones(1, requires_grad=True), use_reentrant=False).backward()  # type: ignore[no-untyped-call]


def test_extreme_scores_stay_finite() -> None:
    lengths = np.array([3, 20, 40, 70, 150])
    qkv = (torch.randn(lengths.sum(), 3, 1, 16) * 60).requires_grad_()
    torch.autograd.backward(attend_short(qkv, tables(lengths, "cpu")).sum())
    assert qkv.grad is not None
    assert qkv.grad.isfinite().all()


def test_every_row_is_in_one_class_longest_first() -> None:
    lengths = np.array([5, 0, 128, 17, 129, 16, 1024, 64, 70])
    found = tables(lengths, "cpu")
    # 38 tokens are too few for classes of their own.
    assert [(kind.longest, table[:, 1].tolist()) for kind, table in found] == [
        (1024, [1024, 129]),
        (128, [128, 70]),
        (64, [64, 17, 16, 5]),
    ]
    starts = np.cumsum(lengths) - lengths
    rows = {tuple(row) for _, table in found for row in table.tolist()}
    assert rows == {(s, n) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True) if n}
