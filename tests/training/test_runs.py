"""Runs on disk: their state however they ended, their numbers, and how two differ."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scimult.config import save_config
from scimult.errors import ConfigError, DataError
from scimult.training.config import PretrainConfig
from scimult.training.record import recorded
from scimult.training.runs import Best, compare_runs, find_runs, summarise, summarise_all
from scimult.training.stopping import StoppedError
from tests.command import completed, invoke, refused
from tests.raw_corpus import write_jsonl


def write_run(folder: Path, losses: list[float], scores: dict[int, float], **model: Any) -> Path:
    """Write the files of a run of ten planned steps, half a second and 50 tokens each."""
    config = PretrainConfig.model_validate(
        {
            "output": str(folder),
            "data": {"prepared": "papers"},
            "model": {"base": "minilm"} | model,
            "schedule": {"steps": 10},
        }
    )
    folder.mkdir(parents=True)
    save_config(config, folder / "config.yaml")
    (folder / "checkpoints").mkdir()
    lines: list[dict[str, Any]] = [{"step": 0, "metrics": {"dev/mean/mrr": 0.1}}]
    for step, loss in enumerate(losses, start=1):
        metrics = {"dev/mean/mrr": scores[step]} if step in scores else {}
        line = {"step": step, "loss": loss, "tokens": 50, "seconds": 0.5, "metrics": metrics}
        lines.append(line)
    write_jsonl(folder / "metrics.jsonl", lines)
    return folder


def end_with(folder: Path, error: BaseException | None) -> None:
    """End a run, with an error or normally."""
    with contextlib.suppress(*[] if error is None else [type(error)]), recorded(folder, 10):
        assert summarise(folder).state == "running"
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (None, "finished", None),
        (StoppedError("step 3", signal.SIGTERM), "stopped", "SIGTERM after step 3"),
        (ValueError("no such thing"), "failed", "no such thing"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt"),
    ],
)
def test_states(
    tmp_path: Path, error: BaseException | None, state: str, message: str | None
) -> None:
    folder = write_run(tmp_path / "run", [3.0], {})
    end_with(folder, error)
    found = summarise(folder)
    assert found.state == state
    assert (message is None) == (found.message is None)
    assert message is None or message in str(found.message)


@pytest.mark.long
def test_a_killed_run_differs_from_a_running_one_and_resuming_keeps_the_start(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run", [3.0], {})
    script = """
import os, signal, sys
from pathlib import Path
from scimult.training.record import recorded
with recorded(Path(sys.argv[1]), 10):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=False, env=os.environ)
    assert summarise(folder).state == "killed"
    record = json.loads((folder / "run.json").read_text())
    # A run on another machine may be alive.
    (folder / "run.json").write_text(json.dumps(record | {"host": "elsewhere"}))
    assert summarise(folder).state == "running"
    (folder / "run.json").write_text(json.dumps(record | {"started": "2020-01-01T00:00:00+00:00"}))
    end_with(folder, None)
    again = json.loads((folder / "run.json").read_text())
    assert again["started"] == "2020-01-01T00:00:00+00:00"
    assert again["resumed"] is not None
    assert summarise(folder).state == "finished"


def test_another_programs_record_is_none_of_ours(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [3.0], {})
    (folder / "run.json").write_text('{"mine": 1}')
    assert summarise(folder).state == "unknown"
    end_with(folder, None)
    assert summarise(folder).state == "finished"


def test_a_summary_has_last_losses_and_first_best_scores(tmp_path: Path) -> None:
    losses = [100.0] * 5 + [2.0] * 10 + [4.0] * 10
    run = write_run(tmp_path / "a", losses, {5: 0.7, 10: 0.3, 20: 0.7}, variant="mha_expert")
    # An incomplete last line is not damage.
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 26, "lo')
    found = summarise(run)
    assert (found.steps, found.planned, found.state) == (25, 10, "unknown")
    assert (found.name, found.variant, found.data) == ("a", "mha_expert", "papers")
    assert found.loss == pytest.approx(3.0)
    assert found.dev == {"dev/mean/mrr": Best(0.7, 5)}
    assert found.tokens_per_second == pytest.approx(100.0)


def test_the_score_of_the_base_is_best_only_before_others(tmp_path: Path) -> None:
    metric = "dev/mean/mrr"
    assert summarise(write_run(tmp_path / "new", [3.0], {})).dev == {metric: Best(0.1, 0)}
    worse = write_run(tmp_path / "worse", [3.0, 2.0], {1: 0.04, 2: 0.07})
    assert summarise(worse).dev == {metric: Best(0.07, 2)}


def test_runs_are_found_below_folders_once(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / "group" / name, [1.0], {}) for name in "ab")
    (a / "model").mkdir()
    (a / "model" / "config.yaml").write_text("{}")
    assert find_runs([tmp_path, b]) == [a, b]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no run here"):
        find_runs([a, tmp_path / "empty"])


def test_a_linked_run_is_listed_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "one", [3.0], {})
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    summaries, _ = summarise_all([tmp_path / "runs", tmp_path / "link", tmp_path / "link/one"])
    assert [summary.folder for summary in summaries] == [str(run)]


def test_configs_of_other_projects_are_no_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0], {})
    for name, content in (("a", "model: bert-base\n"), ("b", "model:\ndata: {}\n"), ("c", "")):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text(content)
    (tmp_path / "d" / "checkpoints").mkdir(parents=True)  # without one
    assert find_runs([tmp_path]) == [run]
    with pytest.raises(DataError, match="no run here"):
        find_runs([tmp_path / "a"])
    for damaged in ("model: bert-base\n", "data: {}\nmodel: {}\nschedule:\n"):
        (run / "config.yaml").write_text(damaged)
        with pytest.raises(ConfigError, match="not a run's configuration"):
            find_runs([tmp_path])


@pytest.mark.parametrize(
    "line",
    [
        {"step": 2, "metrics": {}},
        {"step": 2, "metrics": {}, "loss": "low", "tokens": 1, "seconds": 1},
        {"step": 2, "metrics": {"dev/mean/mrr": None}, "loss": 1, "tokens": 1, "seconds": 1},
        {"step": 2, "loss": 1, "tokens": 1, "seconds": 1},
        {
            "step": 2,
            "metrics": {},
            "loss": 1,
            "tokens": 1,
            "seconds": 1,
            "by_task": {"search": {"accuracy": 1}},
        },
        ["step", 2],
        {"step": math.inf, "metrics": {}},
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_line_that_lacks_numbers_is_named(tmp_path: Path, line: object) -> None:
    run = write_run(tmp_path / "run", [1.0], {})
    with (run / "metrics.jsonl").open("a") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:3: damaged line of metrics"):
        summarise(run)


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    for name in ("good", "record", "config", "metrics", "pid"):
        write_run(tmp_path / name, [3.0], {})
    (tmp_path / "record" / "run.json").write_text('{"state": "run')
    (tmp_path / "config" / "config.yaml").write_text("data: [")
    (tmp_path / "metrics" / "metrics.jsonl").write_bytes(b"\xff\n")
    one = {"state": "running", "started": "", "host": "h", "pid": "many"}
    (tmp_path / "pid" / "run.json").write_text(json.dumps(one))
    shown = completed("runs", tmp_path, "--json")
    assert [json.loads(line)["name"] for line in shown.stdout.splitlines()] == ["good"]
    for part in (
        "record/run.json: not a valid JSON",
        "config/config.yaml:",
        "metrics.jsonl: damag",
    ):
        assert part in shown.stderr
    assert "pid/run.json: not a process id (value: 'many'). Fix:" in shown.stderr
    assert "config.yaml" in refused("runs", tmp_path / "config")
    single = invoke("runs", "--compare", tmp_path / "good")
    assert "at least two runs" in single.stderr
    assert "Fix: name another run" in single.stderr


def test_comparison_names_what_differs_and_nothing_else(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [2.0], {1: 0.5})
    b = write_run(tmp_path / "b", [1.0], {}, variant="ffn_expert", options={"blocks": "last:2"})
    found = compare_runs([a, b])
    assert found.config == {
        "model.variant": ["vanilla", "ffn_expert"],
        "model.options.blocks": [None, "last:2"],
    }
    assert found.metrics["loss"] == [2.0, 1.0]
    assert found.metrics["dev/mean/mrr"] == [0.5, 0.1]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for seed, loss in (("seed0", 2.0), ("seed1", 1.0)):
        (tmp_path / seed).mkdir()
        write_run(tmp_path / seed / "vanilla", [loss], {})
    summaries, _ = summarise_all([tmp_path])
    assert [run.name for run in summaries] == ["seed0/vanilla", "seed1/vanilla"]
    compared = compare_runs(find_runs([tmp_path]))
    assert compared.runs == ["seed0/vanilla", "seed1/vanilla"]
    (alone,), _ = summarise_all([tmp_path / "seed1"])
    assert alone.name == "vanilla"


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [2.0], {1: 0.5})
    write_run(tmp_path / "b", [1.0], {}, variant="ffn_expert")
    end_with(tmp_path / "b", ValueError("[broken] disk"))
    listed = completed("runs", tmp_path)
    for shown in ("ffn_expert", "failed: [broken] disk", "1/10", "2.0000", "mean/mrr 0.5000 @1"):
        assert shown in listed.output
    compared = invoke("runs", "--compare", tmp_path)
    assert "model.variant" in compared.output
    assert "-0.4" in compared.output
    lines = invoke("runs", "--json", tmp_path).stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]
    both = invoke("runs", "--json", "--compare", tmp_path).stdout
    assert json.loads(both)["metrics"]["loss"] == [2.0, 1.0]
    assert "two runs" in refused("runs", "--compare", tmp_path / "a")
