"""Clipping without waiting for the norm, against torch's own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scimult import distributed
from scimult.models import pack
from scimult.training.optim import SHARED, RoutedAdamW, squared_norm
from tests.models.variants import tiny_encoder, tiny_rows
from tests.ranks import run_ranks
from tests.training.engines import do_step, tiny_engine

LIMITS = (0.0, 0.5, 100.0)
OPTIONS = {"lr": 0.1, "weight_decay": 0.01}


def weights_and_gradients(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(*shape, generator=generator) for shape in ((7, 5), (300,), (2, 3, 4))]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    return [weight.to(dtype) for weight in weights] if dtype != torch.float32 else weights


def optimizer_of(weights: list[Tensor]) -> RoutedAdamW:
    return RoutedAdamW([{"params": weights, "expert": SHARED, "part": "shared"}], **OPTIONS)


@pytest.mark.parametrize("limit", LIMITS)
def test_updates_are_those_of_clipped_gradients(limit: float) -> None:
    """The tolerance is that of float32: gradients are divided by a scale, not multiplied."""
    ours = [torch.nn.Parameter(weight) for weight in weights_and_gradients()]
    theirs = copy.deepcopy(ours)
    gradients = [weight.grad for weight in weights_and_gradients()]
    optimizer, torchs = optimizer_of(ours), torch.optim.AdamW(theirs, **OPTIONS)
    for step in range(3):
        for mine, other, gradient in zip(ours, theirs, gradients, strict=True):
            assert gradient is not None
            mine.grad, other.grad = gradient * (step + 1), gradient * (step + 1)
        squares = squared_norm([weight.grad for weight in ours], torch.device("cpu"))  # type: ignore[misc]
        optimizer.clip(squares.sqrt(), limit)
        norm = torch.nn.utils.clip_grad_norm_(theirs, limit or torch.inf)
        assert float(squares.sqrt()) == pytest.approx(float(norm), rel=1e-6)
        optimizer.step()
        torchs.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_norm_that_is_not_finite_changes_nothing(bad: float) -> None:
    ours = [torch.nn.Parameter(weight) for weight in weights_and_gradients()]
    optimizer = optimizer_of(ours)
    for value in (1.0, bad):
        for weight in ours:
            weight.grad = torch.full_like(weight, value)
        before = copy.deepcopy((ours, optimizer.state_dict()["state"]))
        squares = squared_norm([weight.grad for weight in ours], torch.device("cpu"))  # type: ignore[misc]
        optimizer.clip(squares.sqrt(), 1.0)
        optimizer.step()
    for mine, old in zip(ours, before[0], strict=True):
        assert torch.equal(mine, old)
    for name, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            assert torch.equal(value, before[1][name][key]), key


def test_norms_of_bfloat16_are_not_rounded() -> None:
    gradients = [torch.full((10_001,), 0.1, dtype=torch.bfloat16)]
    exact = gradients[0].double().square().sum()
    assert float(squared_norm(gradients, torch.device("cpu"))) == pytest.approx(float(exact))
    assert float(squared_norm([], torch.device("cpu"))) == 0.0


def trained(steps: int) -> dict[str, tuple[list[float], dict[str, Tensor]]]:
    """Return, by stage, the norms and the weights after some steps on this rank's rows.

    With ``data_types``, DeepSpeed has a norm of its own only where it shards.
    """
    found = {}
    summed = {"data_types": {"grad_accum_dtype": "fp32"}}
    for stage, settings in [(0, {}), (0, summed), (1, {}), (1, summed), (2, {}), (3, {})]:
        engine = tiny_engine(stage, **settings)
        norms = []
        for _ in range(steps):
            do_step(engine, 30.0 * (1 + distributed.rank()))
            norms.append(float(engine.gradient_norm))
        found[f"{stage} {settings}"] = norms, engine.full_weights()
        engine.close()
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_clip_as_torch_does_under_every_stage(ranks: int, tmp_path: Path) -> None:
    """Plain torch, with the mean over ranks; ten gradients of a float32 network at 1e-4."""
    model = tiny_encoder("mha_expert")
    names = dict(model.named_parameters())
    decayed = [p for p in names.values() if p.dim() > 1]
    vectors = [p for p in names.values() if p.dim() == 1]
    groups = [{"params": decayed}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)
    norms = []
    for _ in range(4):
        model.zero_grad()
        factor = 30.0 * (1 + ranks) / 2
        loss = factor * model(pack(tiny_rows()), 1).square().mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
    assert norms[0] > 1
    for by_stage in run_ranks(trained, ranks, tmp_path, 4):
        for stage, (found, weights) in by_stage.items():
            assert found == pytest.approx(norms, rel=1e-4), stage
            for name, parameter in names.items():
                if ".qkv." in name and name.endswith("bias"):
                    continue  # a key's bias has no gradient but rounding, which Adam magnifies
                assert torch.allclose(weights[name], parameter, rtol=1e-4, atol=1e-5), (stage, name)
