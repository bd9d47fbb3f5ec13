"""Where the host spends its time in training steps, which on a GPU should hide behind the device's.

A step that takes as long with few tokens as with many is the host's; `waits` counts where it waits.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path

from benchmarks.gpu_day.day import REPOSITORY, Day
from benchmarks.gpu_day.speeds import WARM, setting_of, wait_for
from benchmarks.training import OurSteps
from scimult.training.engine import process_group

# Few tokens: the device is done before the host.
_PAIRS, _STEPS = 8, 10
_FUNCTIONS = 25


def profile_host(day: Day, step: str) -> None:
    """Report milliseconds of a small step, and of the functions that take longest, by own time.

    The profile slows Python down, so compare its rows with each other, not with the step.
    """
    with process_group(600) as device:
        setting = setting_of(day, day.size("bert-base", "tiny"), _PAIRS)
        ours = OurSteps(setting, device, "bf16")
        ours.steps(0, WARM)
        wait_for(device)
        started = time.perf_counter()
        ours.steps(WARM, _STEPS)
        wait_for(device)
        seconds = time.perf_counter() - started
        profiler = cProfile.Profile()
        profiler.enable()
        ours.steps(WARM, _STEPS)
        profiler.disable()
        ours.close()
    day.note(step, milliseconds_of_step=round(seconds / _STEPS * 1e3, 2))
    for row in _longest(pstats.Stats(profiler)):
        day.note(step, **row)


def _longest(stats: pstats.Stats) -> list[dict[str, str | float]]:
    rows = [
        {
            "function": f"{_place(path)}:{line} {name}" if line else name,
            "calls_of_step": calls / _STEPS,
            "own_ms": round(own / _STEPS * 1e3, 3),
            "with_callees_ms": round(total / _STEPS * 1e3, 3),
        }
        for (path, line, name), (_, calls, own, total, _) in stats.stats.items()  # type: ignore[attr-defined]
    ]
    return sorted(rows, key=lambda row: -row["own_ms"])[:_FUNCTIONS]


def _place(path: str) -> str:
    """Return a file's path in this checkout, or its last two parts elsewhere."""
    if Path(path).is_relative_to(REPOSITORY):
        return str(Path(path).relative_to(REPOSITORY))
    return "/".join(Path(path).parts[-2:])
