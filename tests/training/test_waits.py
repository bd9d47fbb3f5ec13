"""A step tells the device what to do and does not wait for it, as far as DeepSpeed lets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.variants import tiny_encoder
from tests.ranks import run_ranks
from tests.training.engines import do_step, tiny_engine

pytestmark = pytest.mark.ranks

STEPS = 4


def synchronisations() -> dict[int, int]:
    """Return how often steps of each stage have waited for all that the device was told."""
    from deepspeed.accelerator import get_accelerator

    counts = {}
    for stage in (0, 1, 2, 3):
        engine = tiny_engine(stage)
        calls: list[int] = []
        get_accelerator().synchronize = lambda *_, calls=calls: calls.append(1)
        for _ in range(STEPS):
            do_step(engine)
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
