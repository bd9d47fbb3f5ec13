"""Timing of several pieces of work in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import torch

Work = Callable[[], object]
# "cpu" counts the CPU time of all threads of this process, which other processes on the machine
# hardly affect; it says nothing about a GPU.
Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

# OpenMP's threads wait actively for so long after work, and would slow what comes next.
_REST = 0.01


@dataclass(frozen=True)
class Ratio:
    """Relative time of one piece of work to another: median and range over rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def interleaved(
    works: Mapping[str, Work], rounds: int, device: torch.device, clock: Clock = "wall"
) -> dict[str, list[float]]:
    """Return the seconds of each piece of work, one number per round.

    Every round runs all of them, after a warm-up round, in an order of its own: what runs before
    decides what caches hold.
    """
    timed = {name: partial(_timed, work, device, clock) for name, work in works.items()}
    return in_turns(timed, rounds)


def in_turns(timed: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Do as `interleaved` with work that gets the round's number and returns its own seconds.

    So does work in other processes. The warm-up is round 0.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    names, rng = list(timed), random.Random(0)
    for number in range(rounds + 1):
        for name in names:
            taken = timed[name](number)
            if number:
                seconds[name].append(taken)
        rng.shuffle(names)
    return seconds


def _timed(work: Work, device: torch.device, clock: Clock, _: int) -> float:
    return seconds_of(work, device, clock)


def seconds_of(work: Work, device: torch.device, clock: Clock) -> float:
    """Return the seconds of one piece of work on an otherwise idle device."""
    now = CLOCKS[clock]
    _wait(device)
    if device.type == "cpu" and torch.get_num_threads() > 1:
        time.sleep(_REST)
    start = now()
    work()
    _wait(device)
    return now() - start


def ratio(seconds: list[float], reference: list[float]) -> Ratio:
    """Compare two pieces of work round by round."""
    ratios = [ours / theirs for ours, theirs in zip(seconds, reference, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def load_average() -> float:
    """Return the load average of the last minute; NaN where it is unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(work: Work, device: torch.device, rounds: int = 20, warm: int = 3) -> float:
    """Return the median seconds of work, between events on a GPU or by wall clock on a CPU.

    The first ``warm`` rounds are not counted.
    """
    for _ in range(warm):
        work()
    if device.type != "cuda":
        return median(interleaved({"": work}, rounds, device)[""])
    spans: list[float] = []
    for _ in range(rounds):
        start, end = (
            torch.Event(device, enable_timing=True),
            torch.Event(device, enable_timing=True),
        )
        start.record()
        work()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) / 1e3)
    return median(spans)


def machine(device: torch.device) -> dict[str, str | int]:
    """Return the facts about the machine that belong to timings."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
