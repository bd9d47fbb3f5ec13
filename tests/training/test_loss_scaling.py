"""fp16 on a CPU that claims to support it: an excessive loss scale is halved step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.models import pack
from scimult.training import deepspeed_private
from tests.models.variants import tiny_encoder, tiny_rows
from tests.ranks import run_ranks
from tests.training.engines import do_step, tiny_engine

pytestmark = pytest.mark.ranks

SCALE_POWER = 20


def scaled_steps(stage: int) -> list[dict[str, Any]]:
    """Return the engine's state after each of six steps on the same batch."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    fp16 = {"enabled": True, "initial_scale_power": SCALE_POWER, "hysteresis": 1}
    engine = tiny_engine(
        stage, "fp16", clip=0.1, rate_at=lambda n: 1 / (n + 1), keeps_norms=True, fp16=fp16
    )
    steps = []
    for _ in range(6):
        do_step(engine)
        norms = engine.gradient_norms(float(engine.gradient_norm), [engine.take_squares().tolist()])
        steps.append({"scale": engine.loss_scale, "skipped": engine.skipped_steps, "norms": norms})
        steps[-1] |= {"norm": float(engine.gradient_norm), "lr": engine.learning_rate}
    return steps


@pytest.mark.parametrize("stage", [2, 3])
def test_skipped_steps_are_counted_and_leave_the_schedule_alone(stage: int, tmp_path: Path) -> None:
    steps = run_ranks(scaled_steps, 1, tmp_path, stage)[0]
    skipped = steps[-1]["skipped"]
    assert 0 < skipped < 6
    for number, step in enumerate(steps, start=1):
        overflowed = min(number, skipped)
        assert step["skipped"] == overflowed
        assert step["scale"] == 2 ** (SCALE_POWER - overflowed)
        assert step["lr"] == pytest.approx(1e-3 / (1 + number - overflowed))
        assert bool(step["norms"]) == (number > skipped)
    model = tiny_encoder("mha_expert")
    model(pack(tiny_rows()), 1).square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    plain = float(torch.nn.utils.get_total_norm(gradients))
    first = steps[skipped]
    # Ten bits of mantissa through four blocks.
    assert first["norm"] == pytest.approx(plain, rel=1e-2)
    parts = sum(norm**2 for norm in first["norms"].values()) ** 0.5
    assert parts == pytest.approx(first["norm"], rel=1e-3)


def constant_scale(stage: int) -> tuple[float | None, dict[str, float]]:
    """Return the scale of an engine with a constant one, after it met a dynamic one's state."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    engine = tiny_engine(stage, "fp16", fp16={"loss_scale": 128})
    deepspeed_private.set_loss_scale_state(engine._engine, {"cur_scale": 2.0**SCALE_POWER})
    do_step(engine)
    return engine.loss_scale, deepspeed_private.loss_scale_state(engine._engine)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_constant_scale_stays_what_was_configured(stage: int, tmp_path: Path) -> None:
    assert run_ranks(constant_scale, 1, tmp_path, stage) == [(128, {})]
