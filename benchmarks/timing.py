"""Timing of several pieces of work in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch

Work = Callable[[], object]
# "cpu" counts the CPU time of all threads of this process, which other processes on the machine
# hardly affect; it says nothing about a GPU.
Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


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
    seconds: dict[str, list[float]] = {name: [] for name in works}
    now, names, rng = CLOCKS[clock], list(works), random.Random(0)
    for number in range(rounds + 1):
        for name in names:
            _wait(device)
            start = now()
            works[name]()
            _wait(device)
            if number:
                seconds[name].append(now() - start)
        rng.shuffle(names)
    return seconds


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
