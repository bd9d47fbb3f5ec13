"""A step tells the device what to do and does not wait for it, as far as DeepSpeed lets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scimult.models import Encoder, pack
from scimult.training.config import OptimizerConfig
from scimult.training.deepspeed_config import resolve_deepspeed
from scimult.training.engine import DeepSpeedEngine
from scimult.training.optim import RoutedAdamW, parameter_groups
from tests.models.variants import tiny_encoder, tiny_rows
from tests.ranks import run_ranks

pytestmark = pytest.mark.ranks

STEPS = 4


def tiny_engine(
    stage: int, precision: str = "fp32", model: Encoder | None = None
) -> DeepSpeedEngine:
    """Return an engine around a tiny encoder with experts, clipping at 1."""
    model = model or tiny_encoder("mha_expert")
    optimizer = RoutedAdamW(parameter_groups(model, OptimizerConfig(lr=1e-3)), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    settings = resolve_deepspeed(
        {"zero_optimization": {"stage": stage}},
        pairs_per_step=8,
        accumulation=1,
        world_size=1,
        precision=precision,  # type: ignore[arg-type]
        clip=1.0,
    )
    return DeepSpeedEngine(model, optimizer, schedule, settings)


def do_steps(engine: DeepSpeedEngine) -> None:
    for _ in range(STEPS):
        engine.backward(engine.forward(pack(tiny_rows()), 1).float().square().mean())
        engine.step(frozenset({1}))


def synchronisations() -> dict[int, int]:
    """Return how often steps of each stage have waited for all that the device was told."""
    from deepspeed.accelerator import get_accelerator

    counts = {}
    for stage in (0, 1, 2, 3):
        engine = tiny_engine(stage)
        calls: list[int] = []
        get_accelerator().synchronize = lambda *_, calls=calls: calls.append(1)
        do_steps(engine)
        counts[stage] = len(calls)
        engine.close()
    return counts


def test_deepspeed_does_not_wait_to_take_times(tmp_path: Path) -> None:
    """Its throughput timer does by default, from the third step on: twice in each."""
    assert run_ranks(synchronisations, 1, tmp_path)[0] == {0: 0, 1: 0, 2: 0, 3: 0}


def bucket_sizes() -> list[int]:
    model = tiny_encoder("vanilla")
    model.embeddings.requires_grad_(False)
    engine = tiny_engine(2, model=model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = engine._engine.optimizer.reduce_bucket_size
    engine.close()
    return [found, trained]


def test_the_reduction_buffer_has_room_for_what_is_trained(tmp_path: Path) -> None:
    found, trained = run_ranks(bucket_sizes, 1, tmp_path)[0]
    assert found == trained > 0
