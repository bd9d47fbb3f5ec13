"""A run on all kinds of tasks: pairs of three, and targets of a class, labels and a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scimult.data.batches import BatchBuilder, all_known_positives
from scimult.training.config import PretrainConfig
from scimult.training.plan import RunPlan, build_sampler
from tests.training.corpus import (
    ALL_TASKS,
    KINDS,
    run_config,
)

MIXED = {"mix": "in_batch", "pairs_per_step": 24}
BY_TASK = {
    **KINDS,
    "search": {"name": "info_nce", "temperature": 0.5, "learn_temperature": True},
    "link_prediction": {"name": "triplet", "margin": 2.0},
}
# Two ranks, or chunks, are compared with one pass of one process under each of these.
LOSSES: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "tasks", "weights": {"venue": 2.0}},
    {"weighting": "uncertainty"},
    {"weighting": "gradnorm", "gradnorm_alpha": 0.7},
)


def config_of(folder: Path, name: str, **sections: Any) -> PretrainConfig:
    """Return a run on all tasks whose passes mix them, without dropout."""
    own = sections.pop("loss", {})
    still = {"dropout": 0.0, "attention_dropout": 0.0, "similarity": "l2"}
    sections["model"] = still | sections.get("model", {})
    sections["batch"] = MIXED | sections.get("batch", {})
    return run_config(folder, name, tasks=ALL_TASKS, loss={"by_task": BY_TASK, **own}, **sections)


def micro_batches_of(
    config: PretrainConfig, plan: RunPlan, tokenizer: Any
) -> tuple[Any, BatchBuilder]:
    tokens = plan.data.tokens(tokenizer, 32)
    sampler, _ = build_sampler(config, plan, tokens.lengths_N)
    known = all_known_positives(plan.data)
    return sampler, BatchBuilder(plan.sources, tokens, known, max_length=32)


def stir(model: torch.nn.Module) -> None:
    """Move the learned parts away from their initial values, many of which are 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("learned."):
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter += 0.3 * noise
