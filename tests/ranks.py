"""Run a function on several ranks: real processes that talk over gloo."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from scimult import distributed

# Ranks are forked from a server that has imported all of this: seconds less for each.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["deepspeed", "scimult.training.run", "tests.ranks"])


def run_ranks(function: Callable[..., Any], world: int, folder: Path, *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` on every rank and return the results in rank order.

    ``function`` lives at the top level of a test module; what it returns must be picklable.
    ``folder`` (a ``tmp_path``) receives the results.
    """
    port = distributed.free_port()
    mp.start_processes(
        _on_rank,
        args=(function, world, port, folder, arguments),
        nprocs=world,
        start_method="forkserver",
    )
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]


def _on_rank(
    rank: int, function: Callable[..., Any], world: int, port: int, folder: Path, arguments: Any
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    distributed.initialise(torch.device("cpu"), timeout_seconds=60)
    try:
        torch.save(function(*arguments), folder / f"rank{rank}.pt")
    finally:
        distributed.shut_down()
