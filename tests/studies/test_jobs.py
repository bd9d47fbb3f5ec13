"""Jobs: order, slots, failures, stops, and leftovers of a killed call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scimult.studies.config import LaunchConfig
from scimult.studies.jobs import Slot, is_at_work, log_of, run_jobs
from scimult.studies.work import make_slots
from scimult.training.stopping import StopRequest
from tests.waiting import wait_until


@dataclass(frozen=True)
class Shell:
    """A shell job that is done when its file exists."""

    name: str
    folder: Path
    script: str = ""
    needs: list[str] = field(default_factory=list)

    def is_done(self) -> bool:
        return (self.folder / self.name).exists()

    def begin(self) -> None:
        pass

    def command(self, slot: Slot) -> list[str]:
        return ["sh", "-c", f"cd {self.folder}; {self.script or f'touch {self.name}'}"]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    jobs = [Shell("a", tmp_path), Shell("b", tmp_path, needs=["a"])]
    (tmp_path / "a").touch()
    outcome = run_jobs(jobs, [Slot()], tmp_path / "logs", StopRequest())
    assert outcome.done == ["a", "b"]
    assert not outcome.failed
    assert not log_of(tmp_path / "logs", "a").exists()
    assert log_of(tmp_path / "logs", "b").read_text().startswith("$ sh -c")


@pytest.mark.long
def test_a_failure_stops_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    jobs = [
        Shell("bad", tmp_path, "echo; echo 'error: no such thing' >&2; echo bye; exit 3"),
        Shell("late", tmp_path, needs=["bad"]),
        Shell("later", tmp_path, needs=["late"]),
        Shell("good", tmp_path),
        Shell("empty", tmp_path, "true"),
    ]
    logs = tmp_path / "logs"
    outcome = run_jobs(jobs, [Slot()], logs, StopRequest())
    assert outcome.done == ["good"]
    assert outcome.failed == {
        "bad": f"error: no such thing (log: {logs / 'bad.log'})",
        "late": "needs bad, which failed",
        "later": "needs late, which failed",
        # It exited with 0, but its file is missing.
        "empty": f"exit code 0 (log: {logs / 'empty.log'})",
    }
    # The next call tries again and appends to the log.
    (tmp_path / "bad").touch()
    assert run_jobs(jobs[:3], [Slot()], logs, StopRequest()).done == ["bad", "late", "later"]


def test_an_error_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    scripts = ("echo error: no memory; exit 1", "echo going on; kill -9 $$")
    reasons = []
    for script in scripts:
        jobs = [Shell("a", tmp_path, script)]
        outcome = run_jobs(jobs, [Slot()], tmp_path / "logs", StopRequest())
        reasons.append(outcome.failed["a"].partition(" (log")[0])
    assert reasons == ["error: no memory", "going on"]


def test_as_many_at_once_as_there_are_slots(tmp_path: Path) -> None:
    """Each waits for the other to begin, so one slot would never finish."""
    wait = "for i in $(seq 600); do [ -e {1}.began ] && touch {0} && exit; sleep 0.1; done"
    meet = f"touch {{0}}.began; {wait}"
    jobs = [
        Shell("a", tmp_path, meet.format("a", "b")),
        Shell("b", tmp_path, meet.format("b", "a")),
    ]
    slots = make_slots(LaunchConfig(devices=[4, 7]))
    assert run_jobs(jobs, slots, tmp_path / "logs", StopRequest()).done
    assert {job.is_done() for job in jobs} == {True}


def test_slots_of_devices_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    pairs = make_slots(LaunchConfig(devices=[3, 1, 0, 2], ranks=2))
    assert [slot.environment for slot in pairs] == [
        {"CUDA_VISIBLE_DEVICES": gpus, "OMP_NUM_THREADS": "2"} for gpus in ("3,1", "0,2")
    ]
    shares = make_slots(LaunchConfig(parallel=2, ranks=2))
    assert [slot.environment for slot in shares] == [{"OMP_NUM_THREADS": "2"}] * 2
    # Two jobs on each GPU, the GPUs in turn.
    both = make_slots(LaunchConfig(devices=[0, 1], parallel=2))
    assert [slot.environment for slot in both] == [
        {"CUDA_VISIBLE_DEVICES": gpu, "OMP_NUM_THREADS": "2"} for gpu in ("0", "1", "0", "1")
    ]
    # One job has the machine, and its ranks share the cores.
    assert [slot.environment for slot in make_slots(LaunchConfig())] == [{}]


@pytest.mark.long
def test_a_signal_reaches_every_process_and_nothing_more_starts(tmp_path: Path) -> None:
    """The job gets SIGTERM, as from a scheduler, and has time to write its checkpoint."""
    trap = "trap 'sleep 0.5; touch saved; exit 143' TERM; touch began; sleep 600 & wait"
    jobs = [Shell("a", tmp_path, trap), Shell("b", tmp_path, needs=["a"]), Shell("c", tmp_path)]

    def interrupt() -> None:
        wait_until((tmp_path / "began").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with StopRequest().listening() as request:
        outcome = run_jobs(jobs, [Slot()], tmp_path / "logs", request)
    assert request.signal == signal.SIGINT
    assert (tmp_path / "saved").exists()
    assert not outcome.done
    assert not outcome.failed
    # The shell may end before the sleep that the same signal reached; a minute would be too late.
    wait_until(lambda: not is_at_work(tmp_path / "logs", "a"))


_CALL = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.studies.test_jobs import Shell
from scimult.studies.jobs import Slot, run_jobs
from scimult.training.stopping import StopRequest
folder = Path({folder!r})
run_jobs([Shell("a", folder, {script!r})], [Slot()], folder / "logs", StopRequest())
"""


@pytest.mark.long
def test_a_stop_waits_for_ranks_that_outlive_their_launcher(tmp_path: Path) -> None:
    """A scheduler kills what is left when the study ends, and with it unfinished checkpoints."""
    rank = "(trap '' TERM; touch ready; sleep 1.5; touch saved) &"
    request = StopRequest()

    def stop() -> None:
        wait_until((tmp_path / "ready").exists)
        request.signal = signal.SIGTERM

    thread = threading.Thread(target=stop)
    thread.start()
    run_jobs([Shell("a", tmp_path, f"{rank} sleep 30")], [Slot()], tmp_path / "logs", request)
    thread.join()
    assert (tmp_path / "saved").exists()


@pytest.mark.long
def test_what_a_killed_call_left_at_work_is_waited_for(tmp_path: Path, repository: Path) -> None:
    """No second job is started, and the result of the first is used."""
    script = "echo x >> starts; touch began; while [ ! -e go ]; do sleep 0.1; done; touch a"
    code = _CALL.format(root=str(repository), folder=str(tmp_path), script=script)
    call = subprocess.Popen([sys.executable, "-c", code])
    wait_until((tmp_path / "began").exists)
    call.kill()
    call.wait()
    assert is_at_work(tmp_path / "logs", "a")
    threading.Timer(1.0, (tmp_path / "go").touch).start()
    job = Shell("a", tmp_path, script)
    assert run_jobs([job], [Slot()], tmp_path / "logs", StopRequest()).done == ["a"]
    assert (tmp_path / "starts").read_text() == "x\n"
