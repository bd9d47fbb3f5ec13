"""Run jobs (commands that depend on each other) in a few slots, and stop them together."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from scimult.progress import note
from scimult.training.stopping import StopRequest

_POLL_SECONDS = 0.1
_GPUS = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Slot:
    """A place for one job at a time: certain GPUs, or else a share of the CPUs."""

    devices: tuple[int, ...] = ()
    threads: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables to set for a job's process."""
        variables = {}
        if self.devices:
            variables[_GPUS] = ",".join(map(str, self.devices))
        if self.threads is not None and _THREADS not in os.environ:
            variables[_THREADS] = str(self.threads)
        return variables


class Job(Protocol):
    """A command, and a check whether it need not run."""

    @property
    def name(self) -> str:
        """Its name, also that of its log."""

    @property
    def needs(self) -> list[str]:
        """Names of jobs that must be done first."""

    def is_done(self) -> bool:
        """Return whether all its output exists; called when its needs are done."""

    def command(self, slot: Slot) -> list[str]:
        """Return the command for a slot; called when its needs are done."""

    def begin(self) -> None:
        """Record the inputs of the command, which starts now."""


@dataclass
class Outcome:
    """Jobs that are done, and reasons why others failed."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class _Work:
    job: Job
    slot: Slot
    process: subprocess.Popen[bytes]
    started: float


def run_jobs(
    jobs: Sequence[Job], slots: Sequence[Slot], logs: Path, request: StopRequest
) -> Outcome:
    """Run every job that is not done, as soon as its needs are done and a slot is free.

    A failed job stops only the jobs that need it. Jobs left running by a killed call are waited
    for. ``logs`` gets a log per job, to which every attempt is appended. Once ``request`` has a
    signal, nothing more is started, running jobs are asked to stop and waited for, and jobs that
    did not run are in neither part of the outcome.
    """
    logs.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    waiting, free, running = list(jobs), list(slots), dict[str, _Work]()
    stop_sent = False
    try:
        while running or (waiting and not request.signal):
            for name in [name for name in running if _has_ended(running[name], logs, stop_sent)]:
                work = running.pop(name)
                free.append(work.slot)
                _finish(work, logs, outcome, stopped=bool(request.signal))
            if request.signal and not stop_sent:
                stop_sent = True
                note(f"stopping {', '.join(running) or 'nothing'}; checkpoints will be written")
                _terminate(running)
            if not request.signal:
                _start_ready(waiting, free, running, logs, outcome, len(jobs))
            if running or waiting:
                time.sleep(_POLL_SECONDS)
    except BaseException:
        _terminate(running)
        raise
    return outcome


def is_at_work(logs: Path, name: str) -> bool:
    """Return whether a process still holds the lock of a job's log."""
    path = log_of(logs, name)
    if not path.is_file():
        return False
    with path.open("ab") as log:
        return not _lock(log)


def log_of(logs: Path, name: str) -> Path:
    """Return the log of a job."""
    return logs / f"{name}.log"


def _start_ready(
    waiting: list[Job],
    free: list[Slot],
    running: dict[str, _Work],
    logs: Path,
    outcome: Outcome,
    total: int,
) -> None:
    for job in list(waiting):
        unmet = [name for name in job.needs if name not in outcome.done]
        failed = [name for name in unmet if name in outcome.failed]
        if failed:
            waiting.remove(job)
            outcome.failed[job.name] = f"needs {failed[0]}, which failed"
        # is_done may hash a large file, so it is called only once, just before the start.
        if unmet or not free or is_at_work(logs, job.name):
            continue
        waiting.remove(job)
        if job.is_done():
            outcome.done.append(job.name)
        else:
            number = len(outcome.done) + len(outcome.failed) + len(running) + 1
            slot = free.pop(0)
            gpus = f" on GPU {', '.join(map(str, slot.devices))}" if slot.devices else ""
            note(f"[{number}/{total}] {job.name}{gpus}")
            try:
                running[job.name] = _start(job, slot, logs)
            except BaseException:
                free.append(slot)
                raise


def _start(job: Job, slot: Slot, logs: Path) -> _Work:
    command = job.command(slot)
    job.begin()
    environment = {**os.environ, **slot.environment}
    # In its own session, Ctrl-C does not reach the job; run_jobs sends SIGTERM instead.
    with log_of(logs, job.name).open("ab") as log:
        # The lock lasts as long as a process of the job keeps the log open.
        _lock(log)
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return _Work(job, slot, process, time.monotonic())


def _has_ended(work: _Work, logs: Path, stopping: bool) -> bool:
    """Return whether a job has ended: a launcher dies of SIGTERM before its ranks have saved."""
    ended = work.process.poll() is not None
    return ended and not (stopping and is_at_work(logs, work.job.name))


def _finish(work: _Work, logs: Path, outcome: Outcome, *, stopped: bool) -> None:
    name, code = work.job.name, work.process.returncode
    seconds = time.monotonic() - work.started
    if code == 0 and work.job.is_done():
        outcome.done.append(name)
        note(f"{name}: done in {seconds:,.0f} s")
    elif not stopped:
        reason = _last_error(log_of(logs, name)) or f"exit code {code}"
        outcome.failed[name] = f"{reason} (log: {log_of(logs, name)})"
        note(f"{name}: failed: {outcome.failed[name]}")


def _terminate(running: Mapping[str, _Work]) -> None:
    """Send SIGTERM to every process of every job, as a scheduler does."""
    for work in running.values():
        with suppress(ProcessLookupError):
            os.killpg(work.process.pid, signal.SIGTERM)


def _last_error(log: Path) -> str:
    """Return the last error of a log's last attempt, or its last line."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    started = max(number for number, line in enumerate(lines) if line.startswith("$ "))
    lines = [line for line in lines[started + 1 :] if line]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1] if lines else ""


def _lock(log: IO[bytes]) -> bool:
    """Lock a log; return False if another process has it. Without file locks, do nothing."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
