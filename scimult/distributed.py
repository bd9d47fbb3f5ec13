"""Rank, world size and collectives that also work without a process group.

Shape legend: N rows on this rank, W ranks, D width, S rows of all ranks.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from scimult.errors import ConfigError, SciMultError, quoted_in_line

T = TypeVar("T")
_BACKENDS_OF_GPUS = "cpu:gloo,cuda:nccl"
# What gloo says first: a place in its source.
_ENFORCED = re.compile(r"\[enforce fail at [^]]*\] (\S+ != \S+\. )?")
# How gloo and NCCL report a peer that is gone or silent.
_LOST = re.compile(r"closed by peer|reset by peer|broken pipe|timed? ?out|remote process", re.I)


class LostRankError(SciMultError):
    """Another rank has exited or does not respond."""


def rank() -> int:
    """Return the global rank; 0 without a process group (``RANK`` if a launcher set it)."""
    return dist.get_rank() if _initialised() else launched("RANK", 0)


def world_size() -> int:
    """Return the number of ranks; 1 without a process group (``WORLD_SIZE`` if set)."""
    return dist.get_world_size() if _initialised() else launched("WORLD_SIZE", 1)


def local_rank() -> int:
    """Return the index of this process on its machine."""
    return launched("LOCAL_RANK", 0)


def launched(name: str, default: int) -> int:
    """Return a number that a launcher put into the environment; an empty value counts as unset."""
    return int(os.environ.get(name) or default)


def use_own_gpu(device: str | None = None, *, may_share: bool = True) -> None:
    """Make the GPU with this process's index on its machine the current one, if it sees several.

    ``cuda`` then means that GPU, for every library. With ``may_share``, all use the only one, and
    tasks of a plain ``srun`` take turns. A ``device`` other than ``cuda`` was chosen by name, and
    nothing changes.

    Raises
    ------
    ConfigError
        If a launcher started more processes on this machine than it sees GPUs.
    """
    if device not in (None, "cuda"):
        return
    index, gpus = local_rank(), torch.cuda.device_count()
    if may_share and gpus and "LOCAL_RANK" not in os.environ:
        # Slurm may show each task all GPUs of the machine, or its own alone.
        index = int(os.environ.get("SLURM_LOCALID", "0")) % gpus
    if index >= gpus and (gpus > 1 or not may_share):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ConfigError(
            f"process {index} of this machine (LOCAL_RANK, from 0) has no GPU: torch sees {gpus}",
            value=None if visible is None else f"CUDA_VISIBLE_DEVICES={visible}",
            fix=f"start at most {gpus} processes on a machine, and let each see all of its GPUs",
        )
    if gpus > 1:
        torch.cuda.set_device(index)


def is_main() -> bool:
    """Return whether this process is global rank 0: the one that prints and writes."""
    return rank() == 0


def initialise(device: torch.device, timeout_seconds: float) -> bool:
    """Join the launcher's process group, or create one of a single process.

    GPU tensors go over NCCL. Host tensors and objects go over gloo: NCCL would copy them to the
    GPU and back, behind all work queued before.

    Parameters
    ----------
    device : device
        Where this rank computes.
    timeout_seconds : float
        A collective that waits longer ends the job instead of hanging it.

    Returns
    -------
    bool
        Whether this call created the group, so that its caller should leave it.

    Raises
    ------
    ConfigError
        If a launcher's environment variables are missing or wrong, or no connection can be made.
    """
    if _initialised():
        return False
    timeout = datetime.timedelta(seconds=timeout_seconds)
    backend = "gloo" if device.type == "cpu" else _BACKENDS_OF_GPUS
    if launched("WORLD_SIZE", 1) > 1:
        store, own_rank, ranks = _launchers_store()
        # The launcher's store outlives a group and keeps its rendezvous addresses, so each group
        # of the job gets keys of its own.
        number = store.add(f"scimult/groups of rank {own_rank}", 1)
        store = dist.PrefixStore(f"scimult/group {number}", store)  # type: ignore[attr-defined]
        store.set_timeout(timeout)
    else:
        own_rank, ranks = 0, 1
        # A fresh port: a second run in this process must not meet the first one's store.
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timeout)  # type: ignore[attr-defined]
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    with _naming_failed_starts():
        dist.init_process_group(
            backend, store=store, rank=own_rank, world_size=ranks, timeout=timeout
        )
    return True


@cache
def _launchers_store() -> tuple[Any, int, int]:
    """Return the launcher's rendezvous store, this process's rank and the number of ranks.

    Opened once: under some launchers rank 0 serves the store, and the others could not connect
    while rank 0 reopened it.

    Raises
    ------
    ConfigError
        If a launcher's environment variables are missing or wrong, or no connection can be made.
    """
    with _naming_failed_starts():
        try:
            store, own_rank, ranks = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        except ValueError as error:
            fix = "start it by torchrun or deepspeed, or unset WORLD_SIZE and RANK for one process"
            raise ConfigError(f"cannot join the launcher's ranks: {error}", fix=fix) from error
    return store, int(own_rank), int(ranks)


@contextmanager
def _naming_failed_starts() -> Iterator[None]:
    """Re-raise what torch says where ranks cannot meet, as ``ConfigError``."""
    try:
        yield
    except RuntimeError as error:
        said = _ENFORCED.sub("", quoted_in_line(str(error)))
        if "EADDRINUSE" in said:
            names = ["MASTER_PORT"]
            fix = "choose a port that no program uses (--master_port of torchrun and deepspeed)"
        elif "address for" in said or "resolve" in said:
            names = ["GLOO_SOCKET_IFNAME"]
            fix = "set GLOO_SOCKET_IFNAME to an interface that reaches all ranks (see: ip -br addr)"
        else:
            names = ["MASTER_ADDR", "MASTER_PORT"]
            fix = "let MASTER_ADDR be an address of rank 0's machine that all ranks reach, and read"
            fix += " the other ranks' messages"
        given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        problem = f"ranks cannot connect: {said}"
        raise ConfigError(problem, value=" ".join(given) or None, fix=fix) from error


def shut_down() -> None:
    """Leave the process group, if there is one."""
    if _initialised():
        dist.destroy_process_group()


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Re-raise a collective's connection errors as ``LostRankError``.

    Raises
    ------
    LostRankError
        If another rank exited, or did not respond within the group's timeout.
    """
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or not _LOST.search(str(error)):
            raise
        raise LostRankError(
            f"another rank exited or hangs: {str(error).splitlines()[0].split('. ')[0]}",
            fix="read the other ranks' messages; the same command resumes from the newest "
            "checkpoint",
        ) from error


def free_port() -> int:
    """Return an unused local port for the ranks' rendezvous."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def barrier() -> None:
    """Wait for every rank."""
    if world_size() > 1:
        dist.barrier()


def all_gather_objects(value: Any) -> list[Any]:
    """Return every rank's ``value``, in rank order."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def broadcast_object(value: Any) -> Any:
    """Return rank 0's ``value`` on every rank."""
    if world_size() == 1:
        return value
    holder = [value]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def on_main(work: Callable[[], T]) -> T:
    """Run ``work`` on rank 0; return its result, or raise its exception, on every rank."""
    outcome: tuple[Any, Exception | None] = (None, None)
    if is_main():
        try:
            outcome = (work(), None)
        except Exception as error:
            outcome = (None, error)
    value, problem = broadcast_object(outcome)
    if problem is not None:
        raise problem
    result: T = value
    return result


def sum_over_ranks(x: Tensor) -> Tensor:
    """Add a tensor up over all ranks, in place, without waiting for its device."""
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def gather_rows(x_ND: Tensor, sizes_W: Sequence[int]) -> tuple[Tensor, int]:
    """Concatenate the rows of all ranks; gradients flow back from every rank.

    The gradient of ``x_ND`` is the sum of all ranks' gradients for these rows. A mean over
    ranks of losses over *local* queries therefore has exactly the gradient of the loss over
    the whole batch, without any extra factor.

    Parameters
    ----------
    x_ND : Tensor
        Local rows, shape ``(N, ...)``; N may differ between ranks.
    sizes_W : sequence of int
        N of every rank, known beforehand: exchanging it would make ranks wait for their devices.

    Returns
    -------
    x_SD : Tensor
        Rows of all ranks in rank order, shape ``(S, ...)``.
    offset : int
        Position in ``x_SD`` of this rank's first row.
    """
    if world_size() == 1:
        return x_ND, 0
    assert len(sizes_W) == world_size()
    assert sizes_W[rank()] == len(x_ND)
    gathered: Tensor = _GatherRows.apply(x_ND, sizes_W)  # type: ignore[no-untyped-call,unused-ignore]
    return gathered, sum(sizes_W[: rank()])


class _GatherRows(torch.autograd.Function):
    """All-gather of unequal row counts whose backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, sizes_W: Sequence[int]) -> Tensor:
        ctx.sizes = sizes_W
        # Every rank sends as many rows as the fullest one, padded.
        most = max(sizes_W)
        padded = x_ND.new_zeros(most, *x_ND.shape[1:])
        padded[: len(x_ND)] = x_ND
        parts = x_ND.new_empty(len(sizes_W), *padded.shape)
        dist.all_gather_into_tensor(parts.flatten(0, 1), padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes_W, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient_SD,) = gradients
        padded = gradient_SD.new_zeros(len(ctx.sizes), max(ctx.sizes), *gradient_SD.shape[1:])
        for part, rows in zip(padded, torch.split(gradient_SD, list(ctx.sizes)), strict=True):
            part[: len(rows)] = rows
        total = torch.empty_like(padded[0])
        dist.reduce_scatter_tensor(total, padded.flatten(0, 1))
        return total[: ctx.sizes[rank()]], None


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()
