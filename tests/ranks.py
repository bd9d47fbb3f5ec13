"""Fast-starting processes: ranks that communicate over gloo, and command-line verbs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from scimult import distributed

# Ranks are forked from a server that has imported all of this: seconds less for each.
# DeepSpeed imports the next two when an engine is made, the compiler under stage 3; what a rank
# calls lies in a module of tests, whose imports are those of the corpus.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "deepspeed",
        "deepspeed.module_inject.auto_ep_layer",
        "torch._dynamo",
        "scimult.training.run",
        "hypothesis",
        "pytest",
        "tests.ranks",
        "tests.training.corpus",
    ]
)


def run_ranks(function: Callable[..., Any], world: int, folder: Path, *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` on every rank and return the results in rank order.

    ``function`` lives at the top level of a test module; what it returns must be picklable.
    ``folder`` (a ``tmp_path``) receives the results.
    """
    try:
        _start_ranks(function, world, folder, arguments)
    except mp.ProcessRaisedException as error:
        # Rarely gloo loses a connection while a group forms (pytorch/pytorch#53270).
        if "connectFullMesh failed" not in str(error):
            raise
        _start_ranks(function, world, folder, arguments)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]


def _start_ranks(
    function: Callable[..., Any], world: int, folder: Path, arguments: tuple[Any, ...]
) -> None:
    port = distributed.free_port()
    mp.start_processes(
        _on_rank,
        args=(function, world, port, folder, arguments),
        nprocs=world,
        start_method="forkserver",
    )


def rank_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """Return the environment that a launcher sets for a rank of one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _on_rank(
    rank: int, function: Callable[..., Any], world: int, port: int, folder: Path, arguments: Any
) -> None:
    # What the server imported is no garbage: DeepSpeed has it all looked through for each engine.
    gc.freeze()
    os.environ.update(rank_environment(rank, world, port))
    torch.set_num_threads(1)
    distributed.initialise(torch.device("cpu"), timeout_seconds=60)
    try:
        torch.save(function(*arguments), folder / f"rank{rank}.pt")
    finally:
        distributed.shut_down()


class Verb:
    """A verb in a process of its own, forked from the server; methods are named as ``Popen``'s.

    Parameters
    ----------
    arguments : list of str
        What a user writes after ``scimult``.
    log : Path
        Takes what it prints, after what it holds.
    environment : dict
        Variables of the process.
    before : callable, optional
        Called in the process before the verb.
    """

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._log = log
        log.touch()
        given = (arguments, log, os.getcwd(), environment or {}, before)
        self._process = SERVER.Process(target=_run_verb, args=given)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; kill the process and fail after a timeout."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutError(f"still runs after {timeout} s: {self.printed()}")
        return self.returncode

    def printed(self) -> str:
        return self._log.read_text(encoding="utf-8")


def _run_verb(
    arguments: list[str],
    log: Path,
    folder: str,
    environment: dict[str, str],
    before: Callable[[], None] | None,
) -> None:
    from scimult.cli.main import app

    gc.freeze()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.chdir(folder)
    os.environ.update(environment)
    if before is not None:
        before()
    torch.set_num_threads(1)
    app(arguments)
