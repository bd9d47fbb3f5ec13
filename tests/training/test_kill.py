"""Two real ranks, killed at seeded random moments, resume to the uninterrupted run."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.config import save_config
from scimult.data.sampler import AlternatingSampler
from scimult.distributed import free_port
from scimult.training.config import PretrainConfig
from scimult.training.state import CheckpointStore
from tests.ranks import Verb, rank_environment
from tests.training.corpus import assert_same_run, metrics, run_config

pytestmark = pytest.mark.ranks

# Trouble comes after the first checkpoint.
STEPS, EVERY, TROUBLED_UNIT = 12, 3, 4
PATIENCE = 240.0


def kill_config(folder: Path, name: str, **sections: Any) -> PretrainConfig:
    settings: dict[str, Any] = {
        "schedule": {"steps": STEPS},
        "checkpoint": {"every": EVERY, "keep_best": True, "export": "best"},
        "dev": {"every": 2, "patience": 20},
        "loss": {"learn_temperature": True},
        "model": {"freeze": ["embeddings.positions.*"]},
        "engine": {"deepspeed": {"zero_optimization": {"stage": 2}}},
    }
    return run_config(folder, name, **{**settings, **sections})


def before_micro_batch(trouble: Callable[[], None]) -> None:
    """Cause ``trouble`` in this process before it plans the troubled micro-batch."""
    plan = AlternatingSampler.plan

    def troubled(self: AlternatingSampler, micro_batch: int) -> Any:
        if micro_batch == TROUBLED_UNIT:
            trouble()
        return plan(self, micro_batch)

    AlternatingSampler.plan = troubled  # type: ignore[method-assign]


def sleep_for_good() -> None:
    while True:
        time.sleep(1)


def fill_the_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def fill_the_disk() -> None:
    """Limit file sizes to what metrics need, so that larger writes fail."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@dataclass
class Job:
    """The two ranks of one start of a run."""

    output: Path
    ranks: list[Verb]
    started: float = field(default_factory=time.time)

    def steps(self) -> int:
        """Return the last step recorded; 0 while the file is still from an earlier start."""
        file = self.output / "metrics.jsonl"
        if not file.exists() or file.stat().st_mtime < self.started:
            return 0
        return max(0, file.read_text(encoding="utf-8").count("\n") - 1)

    def writes_checkpoint(self) -> bool:
        return any((self.output / "checkpoints").glob(".step-*.tmp"))

    def kill(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.ranks[rank].kill()

    def join(self) -> list[int | None]:
        """Return the exit codes; a rank that outlives the job fails the test."""
        return [rank.wait(PATIENCE) for rank in self.ranks]

    def printed(self) -> str:
        return "\n".join(rank.printed() for rank in self.ranks)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Yield the list of a test's jobs; end those that remain."""
    started: list[Job] = []
    yield started
    for rank in (rank for job in started for rank in job.ranks):
        rank.kill()


def start(
    config: PretrainConfig, jobs: list[Job], trouble: dict[int, Callable[[], None]] | None = None
) -> Job:
    """Start both ranks, each with its trouble."""
    before = {rank: partial(before_micro_batch, what) for rank, what in (trouble or {}).items()}
    output, port = Path(config.output), free_port()
    file = output.with_suffix(".yaml")
    save_config(config, file)
    ranks = [
        Verb(
            ["pretrain", "--config", str(file)],
            output.with_suffix(f".{len(jobs)}.rank{rank}.log"),
            rank_environment(rank, 2, port),
            before.get(rank),
        )
        for rank in (0, 1)
    ]
    jobs.append(Job(output, ranks))
    return jobs[-1]


def finish(config: PretrainConfig, jobs: list[Job]) -> None:
    job = start(config, jobs)
    assert job.join() == [0, 0], job.printed()


def wait_for(job: Job, step: int, *, writing: bool) -> None:
    """Return once the run has done ``step``, after which a checkpoint may be due."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and all(rank.poll() is None for rank in job.ranks):
        if job.steps() >= step and (not writing or job.writes_checkpoint()):
            return
        time.sleep(0.0005)
    pytest.fail(f"the run never came to step {step}: {job.printed()}")


def kill_once(config: PretrainConfig, jobs: list[Job], rng: random.Random, kind: str) -> None:
    """Start the run, and kill ranks at a random moment before its last checkpoint."""
    job = start(config, jobs)
    wait_for(job, rng.randint(1, STEPS - EVERY), writing=kind == "in a checkpoint")
    time.sleep(rng.uniform(0, 0.003 if kind == "in a checkpoint" else 0.05))
    victims = {"one rank": [rng.randrange(2)], "in a checkpoint": [0]}.get(kind, [0, 1])
    job.kill(victims)
    codes = job.join()
    assert all(codes[rank] == -signal.SIGKILL for rank in victims), job.printed()
    if len(victims) == 1:
        assert codes[1 - victims[0]] == 1, "the other rank went on alone: " + job.printed()
        assert "another rank exited or hangs" in job.ranks[1 - victims[0]].printed()
    assert len(metrics(job.output)) < STEPS, "the run ended before it could be killed"


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Path:
    jobs: list[Job] = []
    finish(kill_config(folder, "uninterrupted"), jobs)
    return folder / "uninterrupted"


def test_killed_in_a_checkpoint_and_resumed(
    folder: Path, uninterrupted: Path, jobs: list[Job]
) -> None:
    config = kill_config(folder, "killed")
    kill_once(config, jobs, random.Random(1), "in a checkpoint")
    finish(config, jobs)
    assert_same_run(uninterrupted, Path(config.output))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(
    folder: Path, uninterrupted: Path, jobs: list[Job], seed: int
) -> None:
    rng = random.Random(seed)
    config = kill_config(folder, f"killed-{seed}")
    for kind in rng.sample(["one rank", "both ranks", "in a checkpoint"], k=3):
        kill_once(config, jobs, rng, kind)
    finish(config, jobs)
    assert_same_run(uninterrupted, Path(config.output))


def test_a_hung_rank_ends_the_job_with_a_message(folder: Path, jobs: list[Job]) -> None:
    # Long enough for a step on a busy machine.
    config = kill_config(
        folder,
        "hung",
        engine={"timeout_minutes": 0.25, "deepspeed": {"zero_optimization": {"stage": 2}}},
    )
    job = start(config, jobs, {1: sleep_for_good})
    assert 0 not in job.join()
    waiting, hung = (rank.printed() for rank in job.ranks)
    assert "rank 1 on " in hung
    assert f"hangs after step {TROUBLED_UNIT}: no step ended within 0.25 minutes" in hung
    assert "in sleep_for_good" in hung, "the stack does not show where it sleeps"
    assert f"hangs after step {TROUBLED_UNIT}" in waiting or "another rank exited" in waiting


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_that_fails_between_passes_says_why_at_once(
    folder: Path, jobs: list[Job], stage: int
) -> None:
    """DeepSpeed would first reduce its gradients, with ranks that are elsewhere."""
    config = kill_config(
        folder,
        f"failed{stage}",
        batch={"pairs_per_step": 10, "accumulation": TROUBLED_UNIT + 1},
        engine={"timeout_minutes": 0.5, "deepspeed": {"zero_optimization": {"stage": stage}}},
    )
    job = start(config, jobs, {1: fill_the_gpu})
    assert job.join() == [1, 1], job.printed()
    waiting, failed = (rank.printed() for rank in job.ranks)
    assert "GPU memory is full: 2.00 GiB more were needed" in failed
    assert "another rank exited" in waiting
    assert "no step ended" not in waiting + failed


def test_a_full_disk_ends_all_ranks_and_leaves_whole_checkpoints(
    folder: Path, jobs: list[Job]
) -> None:
    config = kill_config(folder, "full", dev={"every": 6})
    job = start(config, jobs, {0: fill_the_disk})
    assert job.join() == [1, 1], job.printed()
    for rank in job.ranks:
        assert "cannot write: File too large" in rank.printed()
    store = CheckpointStore(job.output / "checkpoints", keep=2)
    newest = store.newest()
    assert newest is not None
    assert [path.name for path in store.folder.iterdir()] == [newest.path.name]
    assert newest.step == EVERY
