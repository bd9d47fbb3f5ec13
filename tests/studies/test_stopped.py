"""A study that is stopped, killed and continued, and one whose runs fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scimult.evaluation.results import load_result
from tests.studies.small_study import call, small_study, write_study
from tests.waiting import wait_until

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, a base model, a suite and a run configuration."""
    return small_study(tmp_path_factory.mktemp("study"))


RUNS = {
    "vanilla": {"overrides": ["model.variant=vanilla", "schedule.steps=30"]},
    "experts": {"after": "vanilla"},
    "halfway": {"merge": {"models": ["vanilla", "base"], "shares": [0.5, 0.5]}},
}


def test_a_study_that_was_stopped_and_killed_ends_as_one_that_was_not(folder: Path) -> None:
    """SIGINT in a training run, SIGKILL of the study and of a training run, then to the end."""
    changes = {"seeds": [0], "launch": {"parallel": 1}}
    changes["runs"] = {"base": {"model": str(folder / "base")}, **RUNS}
    result = call(write_study(folder, "unbroken", **changes))
    assert result.exit_code == 0, result.output
    broken = folder / "broken"
    path = write_study(folder, "broken", **changes, name="unbroken")
    vanilla = broken / "runs" / "vanilla-seed0"

    def interrupt() -> None:
        wait_until((vanilla / "metrics.jsonl").is_file, 400)
        wait_until(lambda: len((vanilla / "metrics.jsonl").read_text().splitlines()) > 2, 400)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    result = call(path)
    assert result.exit_code == 130, result.output
    assert "run the same command again to resume" in result.stderr
    assert json.loads((vanilla / "run.json").read_text())["state"] == "stopped"

    command = [sys.executable, "-m", "scimult.cli.main", "study", str(path)]
    killed = subprocess.Popen(command, start_new_session=True)
    experts = broken / "runs" / "experts-seed0" / "run.json"
    wait_until(experts.is_file, 400)
    killed.kill()
    killed.wait()
    os.kill(json.loads(experts.read_text())["pid"], signal.SIGKILL)

    result = call(path)
    assert result.exit_code == 0, result.output
    tables = [
        (out / "table.md").read_text().replace(str(out), "")
        for out in (folder / "unbroken", broken)
    ]
    assert tables[0] == tables[1]
    for key in ("vanilla-seed0", "experts-seed0", "halfway-seed0", "base"):
        one, other = (
            load_result(out / "results" / "own" / key / "result.json").sets["own"].scores
            for out in (folder / "unbroken", broken)
        )
        assert one == other
    # The experts were not trained from a base that has changed since.
    (broken / "runs" / "vanilla-seed0" / "model" / "model.safetensors").write_bytes(b"other")
    result = call(path)
    assert result.exit_code == 1
    assert "was not trained from the current model of vanilla-seed0" in result.stderr


def test_a_stepping_stone_is_trained_and_never_scored(folder: Path) -> None:
    runs = {
        "base": {"model": str(folder / "base")},
        "stone": {"evaluate": False},
        "early": {
            "merge": {
                "models": ["stone"],
                "method": "task_vectors",
                "base": "base",
                "by_depth": [1, 0],
            }
        },
    }
    file = write_study(folder, "stones", runs=runs, seeds=[0])
    result = call(file)
    assert result.exit_code == 0, result.output
    out = folder / "stones"
    assert (out / "runs/stone-seed0/model/model.safetensors").is_file()
    scored = {path.parent.name for path in (out / "results/own").glob("*/result.json")}
    assert scored == {"base", "early-seed0"}
    found = json.loads((out / "study.json").read_text())
    (suite,) = found["suites"]
    assert {row["run"] for row in suite["scores"]} == {"base", "early"}
    assert "stone-seed0" in {trial["key"] for trial in found["trials"]}
    table = (out / "table.md").read_text()
    assert "No result yet" not in table
    assert "task_vectors of stone from base, by depth 1:0" in table
    config = json.loads((out / "runs/early-seed0/config.json").read_text())
    assert config["provenance"]["merged"]["by_depth"] == [1.0, 0.0]
    assert "stone-seed0" in (out / "costs.md").read_text()
    again = call(file, "--dry-run")
    assert "0.00 hours" in again.output, again.output


def test_a_failed_run_stops_no_other_and_is_tried_again(folder: Path) -> None:
    """A learning rate that makes training fail; another rate would be another run."""
    runs = {
        "base": {"model": str(folder / "base")},
        "wild": {"overrides": ["optimizer.lr=1e30", "optimizer.clip=0", "schedule.warmup=0"]},
        "tame": {"overrides": ["model.variant=vanilla"]},
    }
    path = write_study(folder, "failing", runs=runs, seeds=[0])
    result = call(path)
    assert result.exit_code == 1
    assert "2 of 5 jobs failed. Fix: " in result.stderr
    assert "wild-seed0.train: error: " in result.stderr
    assert "wild-seed0.evaluate.own: needs wild-seed0.train, which failed" in result.stderr
    out = folder / "failing"
    assert "No result yet of wild-seed0." in (out / "table.md").read_text()
    assert "wild-seed0.train" in (out / "study.html").read_text()
    assert (out / "results" / "own" / "tame-seed0" / "result.json").is_file()
    log = out / "logs" / "wild-seed0.train.log"
    assert log.read_text().count("$ ") == 1
    assert call(path).exit_code == 1
    assert log.read_text().count("$ ") == 2
