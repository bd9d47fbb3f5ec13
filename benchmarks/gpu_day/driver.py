"""Runs the steps of a call one after another, each in its own process with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.day import REPOSITORY, Day
from benchmarks.gpu_day.schedule import Step

# Importing torch takes almost as long, so a step with less time is useless.
_LEAST_SECONDS = 8.0
_GRACE_SECONDS = 2.0
_TAIL = 1500


def run_steps(
    day: Day, call: str, steps: Iterable[Step], budget: float, say: Callable[[str], None]
) -> list[Step]:
    """Run steps, write a line about each, and return those that failed.

    Parameters
    ----------
    day : Day
        Folders and device.
    call : str
        Name of the call in the lines.
    steps : iterable of Step
        Steps in order; each one's time limit is cut to the rest of the budget.
    budget : float
        Time limit of all steps together, in seconds.
    say : callable
        Shows a line to the user.
    """
    # A dry run measures nothing, and the machine may be a busy laptop.
    patience = day.size(1.0, 8.0)
    ends = time.monotonic() + budget * patience
    failed = []
    for step in steps:
        limit = step.box * patience
        box = min(limit, ends - time.monotonic())
        if box < min(limit, _LEAST_SECONDS):
            day.write(step.name, call=call, rc="no time left", seconds=0.0, box=round(box, 1))
            say(f"{step.name}: not run, the call's {budget:.0f} s are used up")
            failed.append(step)
            continue
        say(f"{step.name} (at most {box:.0f} s)")
        end = _run_step(day, call, step, box)
        say(f"{step.name}: {end['rc']} after {end['seconds']} s")
        if end["rc"] != 0:
            failed.append(step)
            say(f"  {end['error'].strip().splitlines()[-1] if end['error'].strip() else ''}")
    return failed


def _run_step(day: Day, call: str, step: Step, box: float) -> dict[str, Any]:
    day.write(step.name, call=call, started=True)
    log = day.work / "logs" / f"{step.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_day", "step", call, step.name]
    started = time.monotonic()
    rc: int | str = "stopped"
    try:
        with log.open("wb") as file:
            ends = ["--ends", str(time.monotonic() + box)]
            rc = boxed([*command, *ends, *_options(day)], box, environment(day), file)
    finally:
        # Also if the whole call is killed, so that the step's end is recorded.
        end: dict[str, Any] = {"rc": rc, "seconds": round(time.monotonic() - started, 1)}
        end |= {"box": round(box, 1), "error": _tail(log) if rc != 0 else ""}
        day.write(step.name, call=call, **end)
    return end


def boxed(command: Sequence[str], seconds: float, env: dict[str, str], log: Any) -> int | str:
    """Run a command; return its exit code, or ``"timeout"`` if it was killed after ``seconds``.

    All processes that it started are killed in any case.
    """
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=env, stdout=log, stderr=log, start_new_session=True
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        _end_tree(process)


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, its group, and descendants that left the group."""
    others = [] if process.poll() is not None else descendants(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if number == signal.SIGTERM and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_SECONDS)
    process.wait()


def descendants(root: int) -> list[int]:
    """Return all descendants of a process, from Linux's ``/proc``."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The process name may itself contain brackets and spaces.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    pids: list[int] = []
    pending = [root]
    while pending:
        started = children.get(pending.pop(), [])
        pids += started
        pending += started
    return pids


def environment(day: Day) -> dict[str, str]:
    """Return the environment of a step: this checkout first, then the bundle's packages."""
    paths = [str(REPOSITORY), str(day.packages.resolve()), str(day.flash.resolve())]
    paths.append(os.environ.get("PYTHONPATH", ""))
    variables = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if day.device == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
    return {**os.environ, **variables}


def _options(day: Day) -> list[str]:
    options = ["--out", str(day.out), "--work", str(day.work), "--device", day.device]
    options += [] if day.bundle is None else ["--bundle", str(day.bundle)]
    return options + (["--dry-run"] if day.dry else [])


def _tail(log: Path) -> str:
    return log.read_bytes()[-_TAIL:].decode("utf-8", "replace") if log.exists() else ""
