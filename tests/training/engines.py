"""An engine around a tiny encoder, for tests of DeepSpeed's behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scimult import distributed
from scimult.models import Encoder, pack
from scimult.training.config import OptimizerConfig
from scimult.training.deepspeed_config import Precision, resolve_deepspeed
from scimult.training.engine import DeepSpeedEngine
from scimult.training.optim import RoutedAdamW, parameter_groups
from tests.models.variants import tiny_encoder, tiny_rows


def tiny_engine(
    stage: int,
    precision: Precision = "fp32",
    model: Encoder | None = None,
    *,
    clip: float = 1.0,
    rate_at: Callable[[int], float] = lambda _: 1.0,
    keeps_norms: bool = False,
    **settings: Any,
) -> DeepSpeedEngine:
    """Return an engine, by default around an encoder with experts, whose rate is constant."""
    model = model or tiny_encoder("mha_expert")
    groups = parameter_groups(model, OptimizerConfig(lr=1e-3))
    optimizer = RoutedAdamW(groups, keeps_norms=keeps_norms, lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    resolved = resolve_deepspeed(
        {"zero_optimization": {"stage": stage}, **settings},
        pairs_per_step=8,
        accumulation=1,
        world_size=distributed.world_size(),
        precision=precision,
        clip=clip,
    )
    return DeepSpeedEngine(model, optimizer, schedule, resolved)


def do_step(engine: DeepSpeedEngine, factor: float = 1.0) -> None:
    """Train one expert on a few rows; ``factor`` scales its loss."""
    engine.backward(factor * engine.forward(pack(tiny_rows()), 1).float().square().mean())
    engine.step(frozenset({1}))
