"""Measurements in separate processes: several ranks, and peak memory."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.multiprocessing.spawn import spawn

from benchmarks.training import OurSteps, Setting
from scimult import distributed
from scimult.files import read_json, write_json
from scimult.hardware import peak_memory
from scimult.training.engine import process_group

_TIMEOUT_SECONDS = 600


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
        spawn(_on_rank, args=arguments, nprocs=ranks)  # type: ignore[no-untyped-call]
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
