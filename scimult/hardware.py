"""What this machine is good at: the precision that pays, and memory that stays."""

from __future__ import annotations

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device has units for bfloat16 products.

    Without them (CPUs before AVX-512 BF16 or AMX, GPUs before Ampere) such products are
    emulated, up to ten times slower than float32 ones.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed instead of giving it back to the system.

    glibc maps every large tensor anew, and the system clears each of its pages at first
    touch, in every step again. Does nothing where the C library is another.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
