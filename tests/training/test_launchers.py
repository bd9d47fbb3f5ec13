"""The commands of the README: deepspeed and torchrun start the same two-rank run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scimult.config import save_config
from scimult.distributed import free_port
from tests.training.corpus import metrics, prepare_corpus, run_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launchers")
    prepare_corpus(path)
    return path


def launch(command: list[str], folder: Path, name: str, repository: Path) -> list[float]:
    """Run a launcher on a tiny run and return its losses."""
    config = run_config(folder, name, schedule={"steps": 3}, log={"tensorboard": True})
    save_config(config, folder / f"{name}.yaml")
    completed = subprocess.run(
        [*command, "launch/pretrain.py", "--config", str(folder / f"{name}.yaml")],
        cwd=repository,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(repository),
        },
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    # Once, not once per rank.
    assert (completed.stdout + completed.stderr).count("step 3/3") == 1
    assert completed.stdout.count("model saved in") == 1
    assert list((folder / name / "tensorboard").glob("events.*"))
    assert (folder / name / "model" / "model.safetensors").is_file()
    return [line["loss"] for line in metrics(folder / name)]


def test_launchers_start_the_same_run(folder: Path, repository: Path) -> None:
    deepspeed = ["deepspeed", "--num_gpus", "2", "--master_port", str(free_port())]
    torchrun = ["torchrun", "--nproc_per_node", "2", "--master_port", str(free_port())]
    losses = launch(deepspeed, folder, "deepspeed", repository)
    assert len(losses) == 3
    assert launch(torchrun, folder, "torchrun", repository) == losses
