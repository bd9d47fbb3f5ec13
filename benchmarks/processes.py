"""Measurements in separate processes: several ranks, peak memory, and sides of a comparison."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.multiprocessing.spawn import start_processes

from benchmarks.timing import Clock, seconds_of
from benchmarks.training import OurSteps, Setting
from scimult import distributed
from scimult.errors import SciMultError
from scimult.files import read_json, write_json
from scimult.hardware import peak_memory
from scimult.training.engine import process_group
from scimult.types import TokenIds

_TIMEOUT_SECONDS = 600
# Processes that share nothing with this one; tests have the server import what they need.
_CLEAN = "forkserver"
Ask = Callable[..., Any]


@dataclass(frozen=True)
class Measured:
    """Real tokens and seconds of a rank's steps, and its peak memory."""

    tokens: int
    seconds: float
    peak_megabytes: float


def on_ranks(setting: Setting, ranks: int, steps: int, precision: str) -> list[Measured]:
    """Run our steps in new processes of one thread each, all of them once before.

    Memory that a step takes for the first time is cleared by the system, page by page.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (setting, ranks, distributed.free_port(), steps, precision, folder)
        start_processes(_on_rank, arguments, ranks, start_method=_CLEAN)  # type: ignore[no-untyped-call]
        return [Measured(**read_json(Path(folder) / f"{rank}.json")) for rank in range(ranks)]


def _on_rank(
    rank: int, setting: Setting, ranks: int, port: int, steps: int, precision: str, folder: str
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    torch.set_num_threads(1)
    with process_group(_TIMEOUT_SECONDS) as device:
        ours = OurSteps(setting, device, precision)
        for number in range(steps + 1):
            ours.step(number)
        distributed.barrier()
        start = time.perf_counter()
        for number in range(1, steps + 1):
            ours.step(number)
        seconds = time.perf_counter() - start
        tokens = sum(
            len(row)
            for number in range(1, steps + 1)
            for column in ours.columns(number)
            for row in column
        )
        ours.close()
        measured = {"tokens": tokens, "seconds": seconds, "peak_megabytes": peak_megabytes()}
        write_json(Path(folder) / f"{rank}.json", measured)


def peak_megabytes() -> float:
    """Return the peak memory of this process, on the GPU if it used one."""
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        return torch.cuda.max_memory_allocated() / 1e6
    return peak_memory() / 1e6


class Steps(Protocol):
    """One side of a comparison."""

    def step(self, number: int) -> None:
        """Do one step."""


# Of a side's own process: its steps with their device, and what it leaves at the end.
_own: list[tuple[Steps, torch.device]] = []
_held = ExitStack()


@contextmanager
def own_process(make: Callable[[torch.device], Steps]) -> Iterator[Ask]:
    """Make steps in a new process; yield what calls a function there, and waits for it.

    In a shared process, memory that one side gives back to the system would cost the next step of
    the other, which has to have it cleared anew.
    """
    with ProcessPoolExecutor(1, get_context(_CLEAN)) as pool:

        def ask(function: Callable[..., Any], *arguments: object) -> Any:
            try:
                return pool.submit(function, *arguments).result()
            except BrokenProcessPool as error:
                raise SciMultError(
                    "a process of the comparison was killed, perhaps as memory was full",
                    fix="compare fewer --pairs",
                ) from error

        try:
            ask(_begin, make)
            yield ask
        finally:
            ask(_end)


def _begin(make: Callable[[torch.device], Steps]) -> None:
    device = _held.enter_context(process_group(_TIMEOUT_SECONDS))
    _own.append((make(device), device))


def _end() -> None:
    _held.close()


def columns(count: int) -> list[list[list[TokenIds]]]:
    """Return the texts of the first steps of this side's process; only ours knows them."""
    ((steps, _),) = _own
    assert isinstance(steps, OurSteps)
    return [steps.columns(number) for number in range(count)]


def seconds_of_step(clock: Clock, number: int) -> float:
    """Do one step of this side's process, and return its seconds."""
    ((steps, device),) = _own
    return seconds_of(partial(steps.step, number), device, clock)
