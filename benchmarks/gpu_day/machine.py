"""Facts about the machine, and the peak rates of its processor and memory."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu_day.day import Day
from benchmarks.timing import median_seconds
from scimult.hardware import known_peak, measured_peak, multiplies_bfloat16, usable_device

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "sentence-transformers",
    "deepspeed",
    "tokenizers",
    "safetensors",
    "pydantic",
    "numpy",
)
# Inputs and outputs of our linear layers: BERT-base's, then MiniLM's.
SHAPES = (
    (768, 2304),
    (768, 768),
    (768, 3072),
    (3072, 768),
    (384, 1152),
    (384, 1536),
    (1536, 384),
)


def describe(day: Day, step: str) -> None:
    """Report versions and properties of the device; join a process group on it."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: _version(name) for name in _PACKAGES},
        "device": "cpu",
        "bfloat16": multiplies_bfloat16(usable_device(day.device)),
    }
    if day.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "devices": torch.cuda.device_count(),
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    day.note(step, **facts)
    from scimult.training.engine import process_group

    with process_group(120) as device:
        backend = torch.distributed.get_backend()
    day.note(step, engine_on=str(device), backend=backend)


def peaks(day: Day, step: str) -> None:
    """Report rates of bf16 products in our shapes, and of copies within the device.

    ``forward``, ``input`` and ``weight`` are the three products of a linear layer in training, in
    TFLOP/s; copies count bytes read and written.
    """
    device = torch.device(day.device)
    day.note(step, copy_tb_s=_copies(day.size(1 << 30, 1 << 22), device))
    sheet = known_peak(device, torch.bfloat16)
    day.note(
        step,
        square_tflops=_rounded(measured_peak(device, torch.bfloat16) / 1e12),
        sheet_tflops=None if sheet is None else sheet / 1e12,
    )
    for inner, outer in SHAPES:
        day.note(step, product=f"{inner}x{outer}", **_products(day, device, inner, outer))


def _copies(elements: int, device: torch.device) -> float:
    source = torch.empty(elements, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device)
    return _rounded(8 * elements / seconds / 1e12)


def _products(day: Day, device: torch.device, inner: int, outer: int) -> dict[str, float]:
    tokens = day.size(65_536, 256)
    shapes = ((tokens, inner), (outer, inner), (tokens, outer))
    x, w, g = (torch.randn(*shape, device=device).bfloat16() for shape in shapes)
    works = {"forward": lambda: x @ w.T, "input": lambda: g @ w, "weight": lambda: g.T @ x}
    operations = 2 * tokens * inner * outer
    return {
        name: _rounded(operations / median_seconds(work, device) / 1e12)
        for name, work in works.items()
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
