"""Cluster scripts: their syntax, and the commands they compose, with stubs on PATH."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from deepspeed.launcher.runner import fetch_hostfile
from typer.main import get_command

from scimult.cli.main import app
from scimult.training.config import PretrainConfig
from tests.waiting import wait_until

SCRIPTS = ("pretrain", "evaluate", "encode")
RECORD = """#!/usr/bin/env bash
printf '%q ' "$(basename "$0")" "$@" >> "$CALLS"; echo >> "$CALLS"
"""
SRUN = (
    RECORD
    + '[[ -z ${SLEEP:-} ]] || { trap "exit 143" TERM; sleep "$SLEEP" & wait; }\nexit "${CODE:-0}"\n'
)
SCONTROL = RECORD + '[[ $1 != show ]] || printf "%s\\n" alpha beta\n'


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a job on two nodes, whose commands only record their calls."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "alpha,beta",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_ARRAY_TASK_ID": "1",
    }


def _start(
    repository: Path, name: str, arguments: list[str], environment: dict[str, str]
) -> subprocess.Popen[str]:
    script = str(repository / "launch" / "slurm" / f"{name}.sh")
    return subprocess.Popen(
        ["bash", script, *arguments],
        cwd=repository,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def _calls(environment: dict[str, str]) -> list[list[str]]:
    path = Path(environment["CALLS"])
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_valid_bash(repository: Path, name: str) -> None:
    path = repository / "launch" / "slurm" / f"{name}.sh"
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_pretraining_starts_a_torchrun_on_every_node(
    repository: Path, slurm: dict[str, str]
) -> None:
    config = "configs/pretrain/scholarly_vanilla.yaml"
    process = _start(repository, "pretrain", ["--config", config, "output=a b"], slurm)
    assert process.wait(60) == 0, process.communicate()[1]
    nodes, started = _calls(slurm)
    assert nodes == ["scontrol", "show", "hostnames", "alpha,beta"]
    place = started.index("launch/pretrain.py")
    assert (repository / started[place]).is_file()
    assert started[place + 1 :] == ["--config", config, "output=a b"]
    assert started[:3] == ["srun", "--kill-on-bad-exit=1", "torchrun"]
    options = dict(zip(started[3:place:2], started[4:place:2], strict=True))
    assert options == {
        "--nnodes": "2",
        "--nproc-per-node": "4",
        "--rdzv-id": "4711",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "alpha:24711",
    }


def test_torchrun_knows_the_options(repository: Path, slurm: dict[str, str]) -> None:
    from torch.distributed.run import get_args_parser

    process = _start(repository, "pretrain", ["--config", "x.yaml"], slurm)
    assert process.wait(60) == 0
    started = _calls(slurm)[-1]
    parsed = get_args_parser().parse_args(started[started.index("torchrun") + 1 :])
    assert (parsed.nnodes, parsed.nproc_per_node) == ("2", "4")
    assert parsed.training_script_args == ["--config", "x.yaml"]


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_that_ends_by_itself_is_not_queued_again(
    repository: Path, slurm: dict[str, str], code: int
) -> None:
    process = _start(repository, "pretrain", [], {**slurm, "CODE": str(code)})
    assert process.wait(60) == code
    assert not any("requeue" in call for call in _calls(slurm))


@pytest.mark.long
def test_a_run_that_is_preempted_ends_and_is_queued_again(
    repository: Path, slurm: dict[str, str]
) -> None:
    process = _start(repository, "pretrain", [], {**slurm, "SLEEP": "60"})
    wait_until(lambda: len(_calls(slurm)) >= 2)
    time.sleep(0.5)  # the stub sets its trap after it has noted the call
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert _calls(slurm)[-1] == ["scontrol", "requeue", "4711"]


def test_an_array_evaluates_a_model_each(repository: Path, slurm: dict[str, str]) -> None:
    models = ["vanilla=runs/a", "expert=runs/with space"]
    process = _start(repository, "evaluate", ["first", "DATA", "results", *models], slurm)
    assert process.wait(60) == 0, process.communicate()[1]
    (call,) = _calls(slurm)
    assert call[:3] == ["srun", "scimult", "evaluate"]
    verb = get_command(app).commands["evaluate"]  # type: ignore[attr-defined]
    options = verb.make_context("evaluate", call[3:]).params
    assert options["model"] == ["expert=runs/with space"]
    assert (options["suite"], options["resume"]) == ("first", True)
    outside = {**slurm, "SLURM_ARRAY_TASK_ID": "2"}
    process = _start(repository, "evaluate", ["first", "DATA", "results", *models], outside)
    assert process.wait(60) == 1
    assert "Fix: sbatch --array=0-1" in process.communicate()[1]


@pytest.mark.parametrize(("task", "step"), [(6, 1), (8, 3)])
def test_an_array_encodes_a_part_each(
    repository: Path, slurm: dict[str, str], task: int, step: int
) -> None:
    numbers = {"ID": task, "MIN": 5, "COUNT": 4, "STEP": step}
    array = {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}
    arguments = ["works/*.gz", "--model", "M", "--task", "search", "--out", "with space"]
    process = _start(repository, "encode", arguments, {**slurm, **array})
    assert process.wait(60) == 0, process.communicate()[1]
    (call,) = _calls(slurm)
    assert call[:3] == ["srun", "scimult", "encode"]
    verb = get_command(app).commands["encode"]  # type: ignore[attr-defined]
    options = verb.make_context("encode", call[3:]).params
    assert (options["part"], options["out"]) == ("1/4", Path("with space"))
    assert options["texts"] == [Path("works/*.gz")]


def test_the_hostfile_is_deepspeeds(repository: Path) -> None:
    found = fetch_hostfile(str(repository / "launch" / "hostfile.example"))
    assert dict(found) == {"node-1": 8, "node-2": 8}


def test_the_page_names_keys_that_exist(repository: Path) -> None:
    page = (repository / "docs" / "clusters.md").read_text(encoding="utf-8")
    for key in ("engine.timeout_minutes", "checkpoint.every", "batch.pairs_per_step"):
        section, name = key.split(".")
        assert f"`{key}`" in page
        assert name in PretrainConfig.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
