"""Learning-rate schedules as closed forms of the step."""

from __future__ import annotations

import math

from scimult.errors import UnknownNameError

SCHEDULES = ("linear", "cosine", "constant")


def warmup_steps(warmup: float, steps: int) -> int:
    """Return the warm-up in steps: ``warmup`` itself, or its share of ``steps`` below 1."""
    return min(steps, math.ceil(warmup * steps) if warmup < 1 else int(warmup))


def lr_factor(name: str, step: int, steps: int, warmup: int) -> float:
    """Return the share of the peak learning rate at a step, counted from 0.

    Rises linearly to 1 over ``warmup`` steps; then ``linear`` and ``cosine`` fall to 0 at
    ``steps`` and ``constant`` stays.

    Raises
    ------
    UnknownNameError
        If the schedule is unknown.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    if step < warmup:
        return (step + 1) / warmup
    if name == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 1.0 - done if name == "linear" else 0.5 * (1 + math.cos(math.pi * done))
