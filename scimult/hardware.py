"""What this machine is good at: the precision that pays, memory that stays, copies that overlap."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from scimult.errors import ConfigError

# Dense bfloat16 and float16 tensor-core rates of data sheets, in TFLOP/s, by a part of the
# device's name; the first that fits counts. (Data sheets of Hopper and Ada give twice this,
# with sparsity.)
_HALF_PRECISION_TFLOPS = (
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H200 NVL", 835.0),
    ("H100 80GB HBM3", 989.0),
    ("H200", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
)
_LONGEST_REASON = 80
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
# Where a tensor of any type may begin within a buffer of bytes.
_ALIGNMENT = 16


def usable_device(device: str | torch.device | None) -> torch.device:
    """Return a device that works; by default the first GPU, else the CPU.

    Raises
    ------
    ConfigError
        If this machine, or this build of torch, has no such device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    # A backend that is not built in raises the third; what is no device at all the last.
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        known = "use cpu or cuda" if torch.cuda.is_available() else "use cpu: torch sees no GPU"
        # torch writes lists of its devices, or of its kernels, into the first line.
        problem = str(error).partition("\n")[0]
        if len(problem) > _LONGEST_REASON:
            problem = "torch has no such device here"
        raise ConfigError(
            f"device cannot be used: {problem}", value=str(device), fix=known
        ) from error


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device has units for bfloat16 products.

    Without them (CPUs before AVX-512 BF16 or AMX, GPUs before Ampere) such products are
    emulated, up to ten times slower than float32 ones.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


@contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Let GPUs take float32 products of factors rounded to 10 bits, inside the block."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if wanted:
            torch.set_float32_matmul_precision(before)


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed instead of giving it back to the system.

    glibc maps every large tensor anew, and the system clears each of its pages at first
    touch, in every step again. Does nothing where the C library is another.
    """
    _tell_allocator({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


def one_thread_each(device: str | torch.device | None) -> int:
    """Let each thread that starts from now on compute by itself; return how many fill the device.

    On a CPU as many as torch would use for one product: who waits for nobody loses no time where
    other work takes a core away. A GPU takes one product after the other.
    """
    if usable_device(device).type != "cpu":
        return 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def share_heaps(count: int) -> None:
    """Let all threads allocate from so many heaps, before any other thread starts.

    glibc gives up to eight heaps a core to threads, and each keeps what it once needed: memory of
    a service with many threads would grow with every thread that meets a large request.
    """
    _tell_allocator({_M_ARENA_MAX: count})


def _tell_allocator(settings: Mapping[int, int]) -> None:
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for name, value in settings.items():
        mallopt(name, value)


def send(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Return tensors of the host on ``device``, by one copy that the host does not wait for.

    From memory that the system may move, a GPU copies while host and device wait for each
    other. Here all values go through one buffer that stays in its place; torch keeps it until the
    copy is done. On a CPU the tensors are returned as they are.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, part in zip(tensors, torch.split(pinned, sizes), strict=True):
        part[: tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
    sent = torch.split(pinned.to(device, non_blocking=True), sizes)
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, part in zip(tensors, sent, strict=True)
    ]


def known_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the most operations per second that a device's data sheet promises.

    ``None`` if the device is not in the table or a slice of one (MIG), for float32 (whose rate
    depends on torch's settings) and for CPUs (whose clock depends on the load).
    """
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    name = torch.cuda.get_device_name(device)
    if "MIG" in name:
        return None
    return next((rate * 1e12 for part, rate in _HALF_PRECISION_TFLOPS if part in name), None)


def measured_peak(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Return the operations per second of the fastest of several large matrix products.

    Below the data sheet's number, and lower still on a machine that is busy with other work.
    """
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, started = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - started < seconds:
        _wait_for(device)
        before = time.perf_counter()
        torch.mm(a, b)
        _wait_for(device)
        best = min(best, time.perf_counter() - before)
    return float(2 * size**3 / best)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory() -> int:
    """Return the most bytes of main memory that this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would start from what the process that started this one has held.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else held * 1024


def peak_gpu_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors held on a GPU so far; ``None`` for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


AUTO, TF32 = "auto", "tf32"
DTYPES = {
    "float32": torch.float32,
    TF32: torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """Return the type that ``auto`` stands for on a device; any other one as it is.

    Raises
    ------
    ConfigError
        If it is ``tf32`` and the device is no GPU.
    """
    if dtype == TF32 and device.type != "cuda":
        fix = "use float32, bfloat16 or auto"
        raise ConfigError(f"only GPUs have products in tf32, not {device}", value=dtype, fix=fix)
    if dtype != AUTO:
        return dtype
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def made_ahead(make: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
    """Yield ``make(item)`` of every item; the next one is made in a thread meanwhile."""
    left = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenise") as thread:
        ready = [thread.submit(make, item) for item in islice(left, 1)]
        while ready:
            made = ready.pop().result()
            ready += [thread.submit(make, item) for item in islice(left, 1)]
            yield made
