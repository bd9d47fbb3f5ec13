"""Gradients of many passes add up in float32, whatever DeepSpeed does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.models import pack
from scimult.training.optim import GradientSums
from tests.models.variants import tiny_rows
from tests.ranks import run_ranks
from tests.training.engines import tiny_engine

pytestmark = pytest.mark.ranks

# Shares of one gradient. Each of the small ones is below half of the last bit that bfloat16 has
# for the large one, and would be lost.
SHARES = [1.0, *[2.0**-9] * 64]
HOST = {"device": "cpu"}
ZERO: dict[str, dict[str, Any]] = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "2 offloaded": {"stage": 2, "offload_optimizer": HOST},
    "3": {"stage": 3},
}


def norms(zero: dict[str, Any]) -> list[float]:
    """Return the norms of two steps on one batch: in one pass, and in many."""
    # A step changes no weight.
    engine = tiny_engine(zero["stage"], "bf16", rate_at=lambda _: 0.0, zero_optimization=zero)
    found = []
    for shares in ([1.0], SHARES):
        with engine.one_reduction():
            for share in shares:
                loss = engine.forward(pack(tiny_rows()[:2]), 1).float().square().mean()
                engine.backward(loss * share)
        engine.step(frozenset({1}))
        found.append(float(engine.gradient_norm))
    engine.close()
    return found


def norms_of_every_stage() -> dict[str, list[float]]:
    return {name: norms(zero) for name, zero in ZERO.items()}


def test_a_step_of_many_passes_has_the_gradient_of_one(tmp_path: Path) -> None:
    for name, (whole, many) in run_ranks(norms_of_every_stage, 1, tmp_path)[0].items():
        # Shares are exact in bfloat16; their sum is rounded once.
        assert many == pytest.approx(sum(SHARES) * whole, rel=2**-8), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_those_of_float64(dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.zeros(500, dtype=dtype))
    frozen = torch.nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)
    generator = torch.Generator().manual_seed(0)
    gradients = (torch.randn(400, 500, generator=generator) + 0.5).to(dtype)
    sums = GradientSums(torch.nn.ParameterList([parameter, frozen]))
    for gradient in gradients:
        (parameter * gradient).sum().backward()
        sums.take()
    sums.restore()
    wanted = gradients.double().sum(0)
    assert parameter.grad is not None
    # One rounding to the gradient's own type; float32 sums of 400 are far finer.
    assert ((parameter.grad.double() - wanted).abs() <= torch.finfo(dtype).eps * wanted.abs()).all()


def test_float32_is_left_to_autograd() -> None:
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    sums = GradientSums(layer)
    sums.take()
    assert torch.equal(layer.bias.grad, torch.ones(2))  # type: ignore[arg-type]
