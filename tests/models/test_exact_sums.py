"""Gradients over 20,000 tokens in bfloat16: a stagnating sum is off by half or more."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch

from scimult.models import pack
from scimult.models.exact_sums import Embedding, LayerNorm
from tests.models.variants import ROUTES, WIDTH, random_weights, tiny_encoder

TOKENS = 20_000
MODERN = {
    "family": "modernbert",
    "token_types": 0,
    "modern": {"global_blocks": [0, 3], "local_window": 4},
}
CASES = ["shared norms", "prefix", "PALs"]
# Of the same parts as the others.
SLOW_CASES = ["instruction", "control codes", "Houlsby adapters", "fusion", "LoRA everywhere"]


def relative_error(ours: torch.Tensor | None, exact: torch.Tensor | None) -> float:
    assert ours is not None
    assert exact is not None
    return float((ours.double() - exact).norm() / exact.norm())


def upstream(width: int) -> torch.Tensor:
    """Return gradients of mostly one sign, like those of a trained model."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(TOKENS, width, generator=generator) * 0.01 + 0.002).bfloat16()


@pytest.mark.long
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_by_itself(bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    half = LayerNorm(384, bias=bias).bfloat16()
    half.weight.data += 0.1 * torch.randn(384, generator=generator).bfloat16()
    exact = copy.deepcopy(half).double()
    x = torch.randn(TOKENS, 384, generator=generator).bfloat16().requires_grad_()
    x_exact = x.detach().double().requires_grad_()
    half(x).backward(upstream(384))
    exact(x_exact).backward(upstream(384).double())
    # Each number is rounded to eight bits once or twice: by at most 2**-9 of it.
    assert relative_error(x.grad, x_exact.grad) <= 2**-8
    for ours, wanted in zip(half.parameters(), exact.parameters(), strict=True):
        assert relative_error(ours.grad, wanted.grad) <= 2**-8


@pytest.mark.parametrize("rows", [1, 3, 30_000])
def test_embedding_by_itself(rows: int) -> None:
    half = Embedding(rows, 64).bfloat16()
    exact = copy.deepcopy(half).double()
    # Word 0 is every second token.
    generator = torch.Generator().manual_seed(2)
    ids_T = torch.randint(rows, (TOKENS,), generator=generator) * (torch.arange(TOKENS) % 2)
    assert torch.equal(half(ids_T).double(), exact(ids_T))
    half(ids_T).backward(upstream(64))
    exact(ids_T).backward(upstream(64).double())
    assert relative_error(half.weight.grad, exact.weight.grad) <= 2**-8


@cache
def many_rows() -> tuple[list[np.ndarray], list[int]]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 50, size=length) for length in rng.integers(20, 31, TOKENS // 25)]
    return rows, rng.integers(0, ROUTES, len(rows)).tolist()


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        *((case, {}) for case in CASES),
        ("mha_expert", MODERN),
        *(pytest.param(case, {}, marks=pytest.mark.slow) for case in SLOW_CASES),
    ],
)
def test_every_parameter_of_a_model(case: str, changes: dict[str, object]) -> None:
    """With equal weights, so that only rounding inside the model remains."""
    half = tiny_encoder(case, initializer_range=0.1, **changes).bfloat16()
    exact = copy.deepcopy(half).double()
    rows, routes = many_rows()
    for model in (half, exact):
        (model(pack(rows), routes).double() * random_weights(1, WIDTH)).sum().backward()
    whole = torch.stack([p.grad.norm() for p in exact.parameters() if p.grad is not None]).norm()
    for (name, ours), wanted in zip(half.named_parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None, name
        assert wanted.grad is not None, name
        # Eight bits through four blocks: below 0.01, adapters 0.02. Gradients that are zero but
        # for rounding (the bias of keys) are compared with the whole.
        error = (ours.grad.double() - wanted.grad).norm()
        assert error <= 0.05 * max(wanted.grad.norm(), 1e-3 * whole), name
