"""Where the host spends its time in training steps, which on a GPU should hide behind the device's.

A step that takes as long with few tokens as with many is the host's; `waits` counts where it waits.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from functools import partial
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
        rows = longest_functions(partial(ours.steps, WARM, _STEPS), times=_STEPS)
        ours.close()
    day.note(step, milliseconds_of_step=round(seconds / _STEPS * 1e3, 2))
    for row in rows:
        day.note(step, **row)


def longest_functions(
    work: Callable[[], object], *, runs: int = 1, times: int = 1
) -> list[dict[str, str | float]]:
    """Run work, return its longest functions by own time; ``times`` is what one run repeats."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(runs):
        work()
    profiler.disable()
    times *= runs
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    longest = sorted(stats.items(), key=lambda item: -item[1][2])[:_FUNCTIONS]
    return [
        {
            "function": f"{_place(path)}:{line} {name}" if line else name,
            "calls": calls / times,
            "own_ms": round(own / times * 1e3, 3),
            "with_callees_ms": round(total / times * 1e3, 3),
        }
        for (path, line, name), (_, calls, own, total, _) in longest
    ]


def _place(path: str) -> str:
    """Return a file's path in this checkout, or its last two parts elsewhere."""
    if Path(path).is_relative_to(REPOSITORY):
        return str(Path(path).relative_to(REPOSITORY))
    return "/".join(Path(path).parts[-2:])
