"""Jobs: commands that need each other's results, run in a few slots, and stopped together."""

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
    """Where one job runs at a time: on these GPUs, or on a share of the CPUs."""

    devices: tuple[int, ...] = ()
    threads: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a job's process gets, beside what this one has."""
        if self.devices:
            return {_GPUS: ",".join(map(str, self.devices))}
        if self.threads is None or _THREADS in os.environ:
            return {}
        return {_THREADS: str(self.threads)}


class Job(Protocol):
    """A command, and how to know that it need not run."""

    @property
    def name(self) -> str:
        """Its name, which its log has too."""

    @property
    def needs(self) -> list[str]:
        """Names of jobs that have to be done before."""

    def is_done(self) -> bool:
        """Return whether all it would write is there; asked when the needs are done."""

    def command(self, slot: Slot) -> list[str]:
        """Return the command for a slot; asked when the needs are done."""

    def begin(self) -> None:
        """Note what the command, which is started now, reads."""


@dataclass
class Outcome:
    """What became of jobs: those done, and by name why others are not."""

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
    """Run every job that is not done, as soon as what it needs is done and a slot is free.

    A job that fails keeps those that need it from running, and no others. What a killed call
    left at work is waited for.

    Parameters
    ----------
    jobs : sequence of Job
        Each after those that it needs.
    slots : sequence of Slot
        As many jobs run at the same time.
    logs : Path
        Folder of a log for each job, to which every attempt is added.
    request : StopRequest
        Once it has a signal nothing more is started, and what is at work is asked to stop, and
        waited for.

    Returns
    -------
    Outcome
        Without the jobs that a signal kept from running.
    """
    logs.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    waiting, free, at_work = list(jobs), list(slots), dict[str, _Work]()
    asked = False
    try:
        while at_work or (waiting and not request.signal):
            for name in [name for name, work in at_work.items() if work.process.poll() is not None]:
                work = at_work.pop(name)
                free.append(work.slot)
                _finish(work, logs, outcome, stopped=bool(request.signal))
            if request.signal and not asked:
                asked = True
                note(f"stopping {', '.join(at_work) or 'nothing'}: checkpoints are written")
                _ask(at_work)
            if not request.signal:
                _start_ready(waiting, free, at_work, logs, outcome, len(jobs))
            if at_work or waiting:
                time.sleep(_POLL_SECONDS)
    except BaseException:
        _ask(at_work)
        raise
    return outcome


def is_at_work(logs: Path, name: str) -> bool:
    """Return whether a process still writes the log of a job, which holds its lock."""
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
    at_work: dict[str, _Work],
    logs: Path,
    outcome: Outcome,
    total: int,
) -> None:
    for job in list(waiting):
        lacking = [name for name in job.needs if name not in outcome.done]
        lost = [name for name in lacking if name in outcome.failed]
        if lost:
            waiting.remove(job)
            outcome.failed[job.name] = f"needs {lost[0]}, which failed"
        # What a done job needs to be known as done may be the hash of a large file: once is enough.
        if lacking or not free or is_at_work(logs, job.name):
            continue
        waiting.remove(job)
        if job.is_done():
            outcome.done.append(job.name)
        else:
            place = f"[{len(outcome.done) + len(outcome.failed) + len(at_work) + 1}/{total}]"
            slot = free.pop(0)
            where = f" on GPU {', '.join(map(str, slot.devices))}" if slot.devices else ""
            note(f"{place} {job.name}{where}")
            try:
                at_work[job.name] = _start(job, slot, logs)
            except BaseException:
                free.append(slot)
                raise


def _start(job: Job, slot: Slot, logs: Path) -> _Work:
    command = job.command(slot)
    job.begin()
    environment = {**os.environ, **slot.environment}
    # Its own session: Ctrl-C reaches this process, which asks all jobs in its own words.
    with log_of(logs, job.name).open("ab") as log:
        # The lock lives as long as a process of the job has the log open.
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


def _finish(work: _Work, logs: Path, outcome: Outcome, *, stopped: bool) -> None:
    name, code = work.job.name, work.process.returncode
    seconds = time.monotonic() - work.started
    if code == 0 and work.job.is_done():
        outcome.done.append(name)
        note(f"{name}: done in {seconds:,.0f} s")
    elif not stopped:
        reason = _last_words(log_of(logs, name)) or f"exit code {code}"
        outcome.failed[name] = f"{reason} (log: {log_of(logs, name)})"
        note(f"{name}: failed: {outcome.failed[name]}")


def _ask(at_work: Mapping[str, _Work]) -> None:
    """Ask every process of every job to stop, as a scheduler does."""
    for work in at_work.values():
        with suppress(ProcessLookupError):
            os.killpg(work.process.pid, signal.SIGTERM)


def _last_words(log: Path) -> str:
    """Return the error that a log ends with, or its last line."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1] if lines else ""


def _lock(log: IO[bytes]) -> bool:
    """Lock a log, unless another process has; on a file system without locks do nothing."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
