"""Learning-rate schedules as closed-form functions of the step."""

from __future__ import annotations

import math
from typing import Literal, get_args

from scimult.errors import one_of

ScheduleName = Literal["linear", "cosine", "constant", "inverse_sqrt", "slanted_triangular"]
SCHEDULES: tuple[str, ...] = get_args(ScheduleName)
# Ratio of highest to lowest rate of the slanted triangle (Howard and Ruder, 2018, section 3.2).
_SLANTED_RATIO = 32


def warmup_steps(warmup: float, steps: int) -> int:
    """Return the warm-up in steps: ``warmup`` itself, or, if below 1, that share of ``steps``."""
    # 0.07 × 100 is a little more than 7.
    share = math.ceil(round(warmup * steps, 6))
    return min(steps, share if warmup < 1 else int(warmup))


def lr_factor(name: str, step: int, steps: int, warmup: int) -> float:
    """Return the fraction of the peak learning rate at a step, counted from 0.

    Rises linearly to 1 over ``warmup`` steps. Then ``linear`` and ``cosine`` fall to 0 at
    ``steps``, ``constant`` stays, and ``inverse_sqrt`` falls with the root of the step
    (Vaswani et al., 2017, equation 3, divided by its peak). ``slanted_triangular`` rises from
    1/32 to 1 and falls back to 1/32 (Howard and Ruder, 2018, equation 3, with cut ``warmup``).

    Raises
    ------
    UnknownNameError
        If the schedule is unknown.
    """
    one_of("schedule", name, SCHEDULES)
    done = min(1.0, max(0, step - warmup) / max(1, steps - warmup))
    if name == "slanted_triangular":
        height = step / warmup if step < warmup else 1.0 - done
        return (1 + height * (_SLANTED_RATIO - 1)) / _SLANTED_RATIO
    if step < warmup:
        return (step + 1) / warmup
    if name == "constant":
        return 1.0
    if name == "inverse_sqrt":
        return math.sqrt(max(1, warmup) / (step + 1))
    return 1.0 - done if name == "linear" else 0.5 * (1 + math.cos(math.pi * done))
