"""What this machine does well: fast number formats, threads, asynchronous copies."""

from __future__ import annotations

import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from scimult.errors import ConfigError, SciMultError

# Dense bfloat16 and float16 tensor-core rates from data sheets, in TFLOP/s, by a part of the
# device's name; the first match counts. (Hopper and Ada data sheets give twice this, with
# sparsity.)
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
# Start of each tensor in a byte buffer, suitable for any type.
_ALIGNMENT = 16
# From messages of full memory: torch's of CPUs; of devices, also those of CUDA and its libraries,
# which have no type of error for it; and of all.
_NO_MEMORY = "can't allocate memory"
_DEVICE_FULL = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_WANTED = re.compile(r"tried to allocate ([\d.]+) (\w+)", re.IGNORECASE)
_OTHERS = re.compile(r"process (\d+) has ([\d.]+ \w+) memory in use", re.IGNORECASE)
# Beyond, they would wait for each other's Python.
_MOST_THREADS = 16
# Held while a thread has changed how all threads multiply.
_PRODUCTS = threading.RLock()


_In = TypeVar("_In")
_Out = TypeVar("_Out")


class MemoryFullError(SciMultError):
    """A device has no memory left for what was to be computed."""


@contextmanager
def naming_full_memory(fix: str) -> Iterator[None]:
    """Raise what torch raises where memory is full as `MemoryFullError`, which tells ``fix``."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        on_device = isinstance(error, torch.OutOfMemoryError) or _DEVICE_FULL.search(message)
        if not on_device and _NO_MEMORY not in message:
            raise
        facts = []
        if match := _WANTED.search(message):
            number, unit = match.groups()
            size = f"{int(number) / 2**30:,.2f} GiB" if unit == "bytes" else f"{number} {unit}"
            facts.append(f"{size} more were needed")
        facts += [f"process {other} holds {size}" for other, size in _OTHERS.findall(message)]
        known = f": {', '.join(facts)}" if facts else ""
        where = "GPU" if on_device else "main"
        raise MemoryFullError(f"{where} memory is full{known}", fix=fix) from error


def usable_device(device: str | torch.device | None) -> torch.device:
    """Return ``device``, checked to work; by default the first GPU, else the CPU.

    Raises
    ------
    ConfigError
        If this machine, or this build of torch, has no such device.
    MemoryFullError
        If other processes have filled it.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with naming_full_memory("free it, or use another device"):
            tried = torch.zeros(1, device=device)
            tried.cpu()  # "meta" holds nothing
            return tried.device
    # Of backends that are not built in or not installed, and of values that are no device.
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        known = "use cpu: torch sees no GPU"
        if torch.cuda.is_available():
            is_first = str(device) in ("cuda", "cuda:0")
            built = "use cpu, or a torch that is built for this GPU and driver"
            known = built if is_first else "use cpu or cuda"
        # torch may list its devices or kernels in the first line.
        problem = str(error).partition("\n")[0]
        if len(problem) > _LONGEST_REASON:
            problem = "torch has no such device here"
        raise ConfigError(
            f"device cannot be used: {problem}", value=str(device), fix=known
        ) from error


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 in hardware.

    CPUs before AVX-512 BF16 or AMX and GPUs before Ampere emulate it, up to ten times slower
    than float32.
    """
    if device.type == "cuda":
        # torch looks at the current device, which another card may be.
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Compute in the tensors' own types inside the block, whatever `torch.autocast` is around it.

    It would round factors of float32 products, and results must not depend on where it is used.
    """
    known = torch.amp.is_autocast_available(device.type)
    if not (known and torch.is_autocast_enabled(device.type)):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Let GPUs use TF32 (10-bit mantissas) for float32 products inside the block."""
    if not wanted:
        yield
        return
    with _precision_of_products("high"):
        yield


@contextmanager
def full_precision_products(device: torch.device) -> Iterator[None]:
    """Let a GPU multiply float32 as such and add bfloat16 products in float32 inside the block.

    By default torch lets it round partial sums of bfloat16 products to bfloat16.
    """
    if device.type != "cuda":
        yield
        return
    sums = torch.backends.cuda.matmul
    with _precision_of_products("highest"):
        before = sums.allow_bf16_reduced_precision_reduction
        sums.allow_bf16_reduced_precision_reduction = False
        try:
            yield
        finally:
            sums.allow_bf16_reduced_precision_reduction = before


@contextmanager
def _precision_of_products(name: str) -> Iterator[None]:
    """Set torch's precision of float32 products, which all threads share."""
    with _PRODUCTS:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(name)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def one_thread_each(device: str | torch.device | None) -> int:
    """Make torch single-threaded for threads started from now on; return how many fill the device.

    On a CPU that is the number of threads torch would use for one product. Independent threads do
    not wait for each other when other work takes a core. A GPU needs one.
    """
    if usable_device(device).type != "cpu":
        return 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def independent_threads(device: torch.device) -> int:
    """Return how many threads can work for a CPU side by side; a GPU needs one.

    As many as torch uses for one product, but Python runs in only one at a time.
    """
    return min(torch.get_num_threads(), _MOST_THREADS) if device.type == "cpu" else 1


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In], workers: int) -> Iterator[_Out]:
    """Yield ``work(item)`` in order, without gradients, from threads that share those of torch.

    Threads that multiply on their own wait for each other at the end, and not after each operation.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        workers,
        thread_name_prefix="multiply",
        initializer=torch.set_num_threads,
        initargs=(max(1, threads // workers),),
    )
    try:
        yield from pool.map(torch.no_grad()(work), items)
    except BaseException:
        # Not waiting for what others have begun: the caller may have been interrupted.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        # MKL has one number for all threads.
        torch.set_num_threads(threads)
    pool.shutdown()


def send(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copy host tensors to ``device`` in one asynchronous transfer.

    Copies from pageable memory block host and device. Here all values go through one pinned
    buffer, which torch keeps until the copy is done. On a CPU the tensors are returned unchanged.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, part in zip(tensors, torch.split(pinned, sizes), strict=True):
        part[: tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
    # Asynchronous copies to Apple's GPUs read host memory after it was freed (pytorch#189690).
    sent = torch.split(pinned.to(device, non_blocking=device.type != "mps"), sizes)
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, part in zip(tensors, sent, strict=True)
    ]


def may_compile_kernels(device: torch.device) -> bool:
    """Return whether Triton is installed and knows the device: NVIDIA's cards from 8.0 on."""
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def free_memory(device: torch.device) -> int:
    """Return the bytes that a GPU has left; 0 where torch does not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def known_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak operations per second in the device's data sheet.

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

    Below the data sheet's number, and lower still on a busy machine.
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
    """Return this process's peak main memory so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would start from the parent process's peak.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024


def peak_gpu_memory(device: torch.device) -> int | None:
    """Return the peak bytes of tensors on a GPU so far; ``None`` for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
