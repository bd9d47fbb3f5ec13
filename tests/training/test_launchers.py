"""The commands of the README: each launcher starts the same two-rank run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scimult.config import save_config
from scimult.distributed import free_port
from scimult.training.run import pretrain
from tests.ranks import run_ranks
from tests.training.corpus import metrics, run_config

pytestmark = pytest.mark.ranks
SLOW = pytest.mark.slow


def run(command: list[str], repository: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a launcher of this environment on the code of the repository."""
    return subprocess.run(
        command,
        cwd=repository,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(repository),
        },
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def launch(command: list[str], folder: Path, name: str, repository: Path) -> list[float]:
    """Run a launcher on a tiny run and return its losses."""
    config = run_config(folder, name, schedule={"steps": 3}, log={"tensorboard": True})
    save_config(config, folder / f"{name}.yaml")
    arguments = ["launch/pretrain.py", "--config", str(folder / f"{name}.yaml")]
    completed = run([*command, *arguments], repository, timeout=240)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    # Once, not once per rank.
    assert (completed.stdout + completed.stderr).count("step 3/3") == 1
    assert completed.stdout.count("model saved in") == 1
    assert list((folder / name / "tensorboard").glob("events.*"))
    assert (folder / name / "model" / "model.safetensors").is_file()
    return losses_of(folder / name)


def losses_of(run_folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(run_folder)]


@pytest.mark.parametrize(
    "launcher",
    [["deepspeed", "--num_gpus"], pytest.param(["torchrun", "--nproc_per_node"], marks=SLOW)],
    ids=lambda command: command[0],
)
def test_a_launcher_starts_the_run_of_two_ranks(
    folder: Path, repository: Path, tmp_path: Path, launcher: list[str]
) -> None:
    command = [*launcher, "2", "--master_port", str(free_port())]
    losses = launch(command, folder, launcher[0], repository)
    assert len(losses) == 3
    alone = run_config(folder, f"beside_{launcher[0]}", schedule={"steps": 3})
    run_ranks(pretrain, 2, tmp_path, alone)
    assert losses_of(folder / f"beside_{launcher[0]}") == losses


@SLOW
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_job_of_two_ranks_has_many_groups_and_two_runs(
    folder: Path, repository: Path, launcher: str
) -> None:
    """The launcher's store remembers the address of an earlier group."""
    names = [f"{launcher}-first", f"{launcher}-second"]
    for name in names:
        config = run_config(folder, name, schedule={"steps": 2}, engine={"timeout_minutes": 0.5})
        save_config(config, folder / f"{name}.yaml")
    command = {
        "torchrun": ["torchrun", "--nproc_per_node", "2"],
        "deepspeed": ["deepspeed", "--num_gpus", "2", "--no_local_rank"],
    }[launcher]
    script = "tests/training/two_runs.py"
    paths = [str(folder / f"{name}.yaml") for name in names]
    completed = run(
        [*command, "--master_port", str(free_port()), script, *paths], repository, timeout=280
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    first, second = (losses_of(folder / name) for name in names)
    assert len(first) == 2
    assert first == second
