"""Training steps: a profile, and their speed by size, batch and options."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.provide import Inputs, random_folder
from benchmarks.training import OurSteps, Setting
from scimult.hardware import known_peak, measured_peak
from scimult.training.engine import process_group
from scimult.training.loop import StepReport

# About 57,000 tokens of 128 pairs of papers; the first steps compile and fill caches.
_PAIRS = 128
WARM, _TIMED, _PROFILED = 3, 8, 3
_KERNELS = 25
_CHUNK_TOKENS = 131_072
# Time that must remain for another case, relative to the longest so far.
_ROOM = 1.2
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"compiled": True},
    {"dropout": 0.1},
    {"dropout": 0.1, "compiled": True},
)
# Most important first, in case time runs out.
_CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    *product((512, _PAIRS), _OPTIONS),
    *((512, {"pooling": "cls", **options}) for options in _OPTIONS[:2]),
    (1024, {"compiled": True}),
    (_PAIRS, {"chunk_tokens": _CHUNK_TOKENS}),
    *product((32,), _OPTIONS),
    (_PAIRS, {"precision": "fp32"}),
)
_DRY_CASES: tuple[tuple[int, dict[str, Any]], ...] = tuple(
    product((8,), ({}, {"dropout": 0.1}, {"chunk_tokens": 200}, {"pooling": "cls"}))
)


def profile_step(
    day: Day, step: str, *, pairs: int = _PAIRS, dropout: float = 0.0, compiled: bool = False
) -> None:
    """Report the device's busy share in steps, the longest kernels, copies and waits."""
    with process_group(600) as device:
        setting = setting_of(day, day.size("bert-base", "tiny"), day.size(pairs, 8))
        ours = OurSteps(replace(setting, dropout=dropout, compiled=compiled), device, "bf16")
        ours.steps(0, WARM + _PROFILED)
        on_gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        wait_for(device)
        with profile(activities=activities) as profiler:
            started = time.perf_counter()
            reports = ours.steps(WARM, _PROFILED)
            wait_for(device)
            seconds = time.perf_counter() - started
        ours.close()
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    # Named ranges on the device include the gaps between kernels.
    events = [e for e in profiler.events() or [] if not getattr(e, "is_user_annotation", False)]
    spans = [(e.time_range.start, e.time_range.end) for e in events if e.device_type == kind]
    day.note(
        step,
        tokens_of_step=round(_tokens(reports) / _PROFILED),
        milliseconds_of_step=round(seconds / _PROFILED * 1e3, 1),
        busy=round(covered(spans) / 1e6 / seconds, 3) if on_gpu else None,
        host=_host_calls(events),
    )
    for kernel in _longest(events, kind):
        day.note(step, **kernel)


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the total length that spans cover, counting overlaps once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _host_calls(events: list[FunctionEvent]) -> dict[str, float]:
    """Return the numbers of copies and waits per step, by runtime call."""
    counts: dict[str, float] = {}
    for event in events:
        if event.name.startswith("cuda") and ("Sync" in event.name or "Memcpy" in event.name):
            counts[event.name] = counts.get(event.name, 0.0) + 1 / _PROFILED
    return {name: round(count, 1) for name, count in counts.items()}


def _longest(events: list[FunctionEvent], kind: DeviceType) -> list[dict[str, Any]]:
    sums: dict[str, tuple[float, int]] = {}
    for event in events:
        if event.device_type == kind:
            span = event.time_range
            on_cpu = kind == DeviceType.CPU
            own = event.self_cpu_time_total if on_cpu else float(span.end - span.start)
            microseconds, count = sums.get(event.name, (0.0, 0))
            sums[event.name] = microseconds + own, count + 1
    whole = sum(microseconds for microseconds, _ in sums.values()) or 1.0
    longest = sorted(sums.items(), key=lambda item: -item[1][0])[:_KERNELS]
    return [
        {
            "kernel": name[:80],
            "milliseconds_of_step": round(microseconds / 1e3 / _PROFILED, 3),
            "calls_of_step": round(count / _PROFILED, 1),
            "share": round(microseconds / whole, 3),
        }
        for name, (microseconds, count) in longest
    ]


def sweep(day: Day, step: str, *, size: str) -> None:
    """Report tokens per second and utilisation by pairs per step and options.

    Cases that would exceed the time limit are left out and listed.
    """
    trained_size = day.size(size, "tiny")
    cases = day.size(_CASES, _DRY_CASES)
    longest = 0.0
    with process_group(600) as device:
        sheet = known_peak(device, torch.bfloat16)
        measured = measured_peak(device, torch.bfloat16)
        for number, (pairs, options) in enumerate(cases):
            if day.seconds_left < _ROOM * longest:
                day.note(step, left_out=[f"{p}: {_describe(o)}" for p, o in cases[number:]])
                break
            started = time.monotonic()
            changes = {key: value for key, value in options.items() if key != "precision"}
            setting = replace(setting_of(day, trained_size, pairs), **changes)
            try:
                precision = options.get("precision", "bf16")
                figures = _rate(setting, device, precision, day.size(_TIMED, 2))
            except torch.OutOfMemoryError:
                figures = {"failed": "out of memory"}
                torch.cuda.empty_cache()
            if "tflops" in figures:
                figures["of_measured"] = round(figures["tflops"] * 1e12 / measured, 4)
                figures["of_sheet"] = sheet and round(figures["tflops"] * 1e12 / sheet, 4)
            day.note(step, size=trained_size, pairs=pairs, options=_describe(options), **figures)
            longest = max(longest, time.monotonic() - started)


def _describe(options: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items()) or "plain"


def _rate(setting: Setting, device: torch.device, precision: str, steps: int) -> dict[str, Any]:
    ours = OurSteps(setting, device, precision)
    # The same steps: a larger one than before would allocate memory, and perhaps compile again.
    ours.steps(0, steps)
    wait_for(device)
    started = time.perf_counter()
    reports = ours.steps(0, steps)
    wait_for(device)
    seconds = time.perf_counter() - started
    ours.close()
    tokens = _tokens(reports)
    operations = sum(report.usage["model_flops"] for report in reports)
    return {
        "tokens_of_step": round(tokens / steps),
        "milliseconds_of_step": round(seconds / steps * 1e3, 1),
        "tokens_per_second": round(tokens / seconds),
        "tflops": float(f"{operations / seconds / 1e12:.4g}"),
        "gpu_gib": round(reports[-1].usage.get("peak_gpu_memory_bytes", 0) / 2**30, 2),
    }


def _tokens(reports: list[StepReport]) -> float:
    """Return the real tokens encoded."""
    return sum(report.usage["tokens_per_second"] * report.seconds for report in reports)


def setting_of(day: Day, size: str, pairs: int) -> Setting:
    """Return the setting of a random encoder of a size on the prepared pairs."""
    folder, prepared = random_folder(day, size), Inputs.of(day.inputs).prepared
    return Setting(str(folder), str(prepared), pairs, day.size(512, 64), dropout=0.0)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peer(day: Day, step: str) -> None:
    """Report our steps and sentence-transformers' in turns, by launch/benchmark.py."""
    inputs = Inputs.of(day.inputs)
    sizes = {
        "--pairs": day.size(256, 4),
        "--max-length": day.size(512, 32),
        "--rounds": day.size(9, 1),
        "--chunk-tokens": day.size(_CHUNK_TOKENS, 64),
    }
    command = [sys.executable, "launch/benchmark.py", "train", "--base", str(inputs.model)]
    command += ["--prepared", str(inputs.prepared), "--precision", "bf16"]
    command += [str(part) for option in sizes.items() for part in option]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    for row in json.loads(done.stdout.splitlines()[-1])["rows"]:
        times = {name: row[name]["median"] for name in ("faster", "cached")}
        rates = {name: round(row[name]) for name in ("ours", "theirs")}
        day.note(step, dropout=row["dropout"], **rates, padding=round(row["padding"], 3), **times)
