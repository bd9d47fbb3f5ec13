"""Runs, costs, the time left and the curves of a study, from metrics written by hand."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from scimult.evaluation.suites import Suite
from scimult.studies.config import (
    EvaluationConfig,
    LaunchConfig,
    MergeConfig,
    RunConfig,
    StudyConfig,
)
from scimult.studies.page import _dev_means, _losses, draw_curves, write_findings
from scimult.studies.plan import Plan, SuitePlan
from scimult.studies.states import State, state_table, states
from scimult.studies.tables import cost_of, cost_table, run_table
from scimult.studies.trials import Trial, key_of
from scimult.training.config import PretrainConfig
from scimult.training.stages import Stage
from tests.benchmark_sets import benchmark
from tests.made_results import set_result, write_result

# Optimizer steps of a stage: those done, and those planned.
Steps = tuple[int, int | None]


def _stage(folder: Path, steps: Steps, seconds: float = 10.0, flops: float | None = 2e12) -> Stage:
    """Write the metrics of a stage, whose first line has no step."""
    done, planned = steps
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"step": 0, "metrics": {"dev/mean/mrr": 0.25}}]
    for step in range(1, done + 1):
        usage = {} if flops is None else {"usage": {"model_flops": flops}}
        metrics = {"dev/mean/mrr": 0.5} if step == done else {}
        numbers = {"loss": 1 / step, "tokens": 1000, "seconds": seconds, "metrics": metrics}
        lines.append({"step": step, **numbers, **usage})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    schedule = SimpleNamespace(steps=planned)
    return Stage(folder.name, PretrainConfig.model_construct(output=str(folder), schedule=schedule))


def _plan(
    folder: Path,
    runs: Mapping[str, RunConfig],
    trials: Sequence[Trial],
    launch: LaunchConfig | None = None,
    sets: Sequence[str] = ("cisi", "cacm"),
) -> Plan:
    section = EvaluationConfig(suite="own", data=str(folder))
    study = StudyConfig(
        name="made up",
        output=str(folder),
        baseline=next(iter(runs)),
        config="run.yaml",
        runs=dict(runs),
        launch=launch or LaunchConfig(),
        evaluate=[section],
    )
    entries = {name: benchmark(name, "search", "search", ["ndcg@10"]) for name in sets}
    suite = Suite(name="own", description="Mine", how_to_get="x", benchmarks=entries)
    return Plan(study, {trial.key: trial for trial in trials}, {"own": SuitePlan(section, suite)})


def _trial(folder: Path, run: str, seed: int | None, *stages: Stage) -> Trial:
    return Trial(run, seed, key_of(run, seed), folder / key_of(run, seed), list(stages), [])


def test_a_table_says_what_each_run_is_made_from(tmp_path: Path) -> None:
    def merge(**given: Any) -> RunConfig:
        return RunConfig(merge=MergeConfig(**given))

    two = ["plain", "later"]
    runs = {
        "plain": (RunConfig(overrides=["optimizer.lr=1e-5", "batch.mix=in_batch"]), "run.yaml"),
        "own": (RunConfig(config="own.yaml", stage="second"), "own.yaml, up to stage second"),
        "later": (RunConfig(after="plain"), "run.yaml, after plain"),
        "base": (RunConfig(model="models/base"), "models/base"),
        "mean": (merge(models=two), "average of plain and later"),
        "soup": (
            merge(models=two, shares=[0.25, 0.75], all_seeds=True),
            "average of plain and later (0.25, 0.75), all seeds in one",
        ),
        "depth": (
            merge(models=two, method="task_vectors", base="base", by_depth=(0.5, 1)),
            "task_vectors of plain and later from base, by depth 0.5:1",
        ),
        "shared": (merge(models=["plain"], share_experts=True), "experts of plain shared"),
        "joined": (
            merge(experts={"search": "plain", "links": "later"}),
            "experts of search: plain, links: later",
        ),
    }
    trials = [_trial(tmp_path, "plain", seed) for seed in (3, 5)]
    trials += [_trial(tmp_path, name, None) for name in runs if name != "plain"]
    plan = _plan(tmp_path, {name: run for name, (run, _) in runs.items()}, trials)
    table = run_table(plan)
    assert {row[0].text: row[1].text for row in table.rows} == {
        name: said for name, (_, said) in runs.items()
    }
    assert [cell.text for cell in table.rows[0][2:]] == [
        "3, 5",
        "optimizer.lr=1e-5 batch.mix=in_batch",
    ]
    assert table.rows[1][2].text == "–"
    assert table.notes == []
    plan.study.overrides.append("dev.every=5")
    assert run_table(plan).notes == ["All trained runs: dev.every=5"]


def _write_scores(plan: Plan, key: str, sets: Sequence[str], seconds: float) -> None:
    facts: dict[str, Any] = {"counts": {"queries": 5}, "resampled": [], "seconds": seconds}
    made = {name: set_result("ndcg@10", {"ndcg@10": 0.5}, **facts) for name in sets}
    benchmarks = plan.suites["own"].suite.benchmarks
    entries = {name: benchmarks[name].model_dump(mode="json") for name in sets}
    write_result(plan.results("own"), key, made, entries)


def test_costs_are_those_of_all_stages_and_sum_up(tmp_path: Path) -> None:
    stages = _stage(tmp_path / "a/one", (3, 3)), _stage(tmp_path / "a/two", (2, 2), seconds=40)
    trials = [
        _trial(tmp_path, "a", 0, *stages),
        _trial(tmp_path, "b", 0, _stage(tmp_path / "b", (1, 1), flops=None)),
        _trial(tmp_path, "base", None),
    ]
    runs = {"a": RunConfig(), "b": RunConfig(), "base": RunConfig(model="base")}
    plan = _plan(tmp_path, runs, trials)
    _write_scores(plan, "a-seed0", ["cisi", "cacm"], 900)
    _write_scores(plan, "base", ["cisi"], 1800)
    costs = {trial.key: cost_of(plan, trial) for trial in trials}
    assert costs["a-seed0"].training_seconds == 3 * 10 + 2 * 40
    table = cost_table(plan, costs)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["a-seed0", "5", "5,000", "10.000", "0.031", "0.500"],
        ["b-seed0", "1", "1,000", "–", "0.003", "0.000"],
        ["base", "0", "0", "0.000", "0.000", "0.500"],
        # A sum with an unknown part is unknown.
        ["all", "6", "6,000", "–", "0.033", "1.000"],
    ]
    assert table.footer == 1
    assert "Ranks per run: 1, on CPUs unless" in table.notes[1]
    known = {key: cost for key, cost in costs.items() if key != "b-seed0"}
    plan = _plan(tmp_path, runs, [trials[0], trials[2]], LaunchConfig(ranks=2, devices=[0, 1]))
    table = cost_table(plan, known)
    assert table.rows[-1][3].text == "10.000"
    assert "Ranks per run: 2, on GPUs unless" in table.notes[1]


def test_the_time_left_is_that_of_the_steps_and_sets_to_do(tmp_path: Path) -> None:
    """Steps of the same run count, or else of any; without a plan, none is known."""
    trials = [
        _trial(tmp_path, "a", 0, _stage(tmp_path / "a-seed0", (4, 4), seconds=10)),
        _trial(tmp_path, "a", 1, _stage(tmp_path / "a-seed1", (1, 4), seconds=10)),
        _trial(tmp_path, "b", 0, _stage(tmp_path / "b-seed0", (5, 6), seconds=20)),
        _trial(tmp_path, "c", 0, _stage(tmp_path / "c-seed0", (0, 10))),
        _trial(tmp_path, "d", 0, _stage(tmp_path / "d-seed0", (0, None))),
        _trial(tmp_path, "stone", 0, _stage(tmp_path / "stone-seed0", (0, 2))),
        _trial(tmp_path, "base", None),
    ]
    runs = {name: RunConfig() for name in "abcd"}
    runs |= {"stone": RunConfig(evaluate=False), "base": RunConfig(model="base")}
    plan = _plan(tmp_path, runs, trials)
    for trial in trials:
        if trial.stages:
            (trial.folder / "config.yaml").write_text("model: {}\n")
    found = {state.key: state for state in states(plan)}
    # Nothing is scored yet, so nothing is known of what is to be scored.
    hours = [state.hours for state in found.values()]
    assert hours == [*[None] * 5, pytest.approx(2 * 15 / 3600), None]
    _write_scores(plan, "a-seed0", ["cisi"], 30)
    _write_scores(plan, "base", ["cisi", "cacm"], 60)
    found = {state.key: state for state in states(plan)}
    # Sets take 50 seconds on average; no mark tells that these are of the present models.
    assert {key: state.hours and round(3600 * state.hours, 6) for key, state in found.items()} == {
        "a-seed0": 100.0,
        "a-seed1": 3 * 10 + 100.0,
        "b-seed0": 1 * 20 + 100.0,
        "c-seed0": 10 * 15 + 100.0,
        "d-seed0": None,
        "stone-seed0": 2 * 15.0,
        "base": 100.0,
    }
    assert [(state.done, state.planned) for state in found.values()] == [
        (4, 4), (1, 4), (5, 6), (0, 10), (0, None), (0, 2), (0, 0),
    ]  # fmt: skip
    assert [state.asked for state in found.values()] == [2, 2, 2, 2, 2, 0, 2]


def test_the_state_of_a_model_is_that_of_the_last_stage_that_began(tmp_path: Path) -> None:
    stages = [_stage(tmp_path / "a-seed0" / name, (0, 2)) for name in ("one", "two", "three")]
    plan = _plan(tmp_path, {"a": RunConfig()}, [_trial(tmp_path, "a", 0, *stages)])
    assert [state.model for state in states(plan)] == ["missing"]
    process = {"started": "2026-01-02T03:04:05+00:00", "host": "here", "pid": 1}
    records = ({"state": "finished"}, {"state": "failed", "message": "out of memory\nat step 3"})
    for stage, record in zip(stages, records, strict=False):
        folder = Path(stage.config.output)
        (folder / "run.json").write_text(json.dumps({**process, **record}))
        (folder / "config.yaml").write_text("model: {}\n")
    (state,) = states(plan)
    assert (state.model, state.planned) == ("failed: out of memory", 6)


@pytest.mark.parametrize(
    ("hours", "note"),
    [
        ([0.5, 1.25], "1.75 hours of one rank are left."),
        ([0.5, None], "0.50 hours of one rank are left, plus 1 model without an estimate yet."),
        (
            [1, None, None],
            "1.00 hours of one rank are left, plus 2 models without an estimate yet.",
        ),
        ([0.0, None], "The time left is known once the first model is trained and evaluated."),
        ([0.0, 0.0], "0.00 hours of one rank are left."),
    ],
)
def test_the_state_says_how_long_the_rest_takes(
    tmp_path: Path, hours: list[float | None], note: str
) -> None:
    plan = _plan(tmp_path, {"a": RunConfig()}, [])
    given = [State(f"m{n}", "missing", n, 4, n, 2, left) for n, left in enumerate(hours)]
    table = state_table(plan, given)
    assert table.notes == [note]
    assert [cell.text for cell in table.rows[1][:4]] == ["m1", "missing", "1/4", "1/2"]
    merged = State("merge", "ready", 0, 0, 2, 2, 0.0)
    epochs = State("epochs", "running", 7, None, 0, 2, None)
    steps = [row[2].text for row in state_table(plan, [merged, epochs]).rows]
    assert steps == ["", "7/?"]


def test_stages_follow_each_other_in_a_curve(tmp_path: Path) -> None:
    stages = _stage(tmp_path / "one", (2, 2)), _stage(tmp_path / "two", (3, 3))
    trial = _trial(tmp_path, "a", 0, *stages)
    assert _losses(trial) == ([1, 2, 3, 4, 5], [1, 1 / 2, 1, 1 / 2, 1 / 3])
    assert _dev_means(trial) == ([0, 2, 2, 5], [0.25, 0.5, 0.25, 0.5])


@pytest.fixture
def two_seeds(tmp_path: Path) -> Plan:
    """Return the plan of a run of two seeds, the second of which has only begun."""
    trials = [
        _trial(tmp_path, "a", 0, _stage(tmp_path / "a-seed0", (4, 4))),
        _trial(tmp_path, "a", 1, _stage(tmp_path / "a-seed1", (2, 4))),
        _trial(tmp_path, "_b", 0, _stage(tmp_path / "b-seed0", (1, 4))),
        _trial(tmp_path, "c", 0, _stage(tmp_path / "c-seed0", (0, 4))),
        _trial(tmp_path, "base", None),
    ]
    runs = {name: RunConfig() for name in ("a", "_b", "c")} | {"base": RunConfig(model="base")}
    return _plan(tmp_path, runs, trials)


def test_curves_have_a_colour_per_run_and_a_line_per_seed(
    two_seeds: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: figures.append(figure))
    assert draw_curves(two_seeds) is not None
    (figure,) = figures
    scores, losses = (axes.get_lines() for axes in figure.axes)
    assert [list(line.get_xdata()) for line in losses] == [[1, 2, 3, 4], [1, 2], [1]]
    assert [list(line.get_ydata()) for line in scores] == [[0.25, 0.5]] * 3
    colours = [line.get_color() for line in losses]
    assert colours == [line.get_color() for line in scores]
    assert colours[0] == colours[1] != colours[2]
    assert losses[0].get_linestyle() != losses[1].get_linestyle()
    (legend,) = figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()] == ["a", "_b"]
    untrained = _plan(two_seeds.out, two_seeds.runs, list(two_seeds.trials.values())[3:])
    assert draw_curves(untrained) is None


def test_findings_are_written_in_every_form(
    two_seeds: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.studies.page.draw_curves", lambda plan: b"a picture")
    for key in ("a-seed0", "base"):
        _write_scores(two_seeds, key, ["cisi", "cacm"], 30)
    (scores,) = write_findings(two_seeds, {"_b-seed0.train": "<b>no</b> memory"})
    assert [[cell.text for cell in row[:3]] for row in scores.rows] == [
        ["a", "1", "50.00"], ["_b", "0", "–"], ["c", "0", "–"], ["base", "–", "50.00"],
    ]  # fmt: skip
    found = json.loads((two_seeds.out / "study.json").read_text(encoding="utf-8"))
    assert {trial["key"]: trial["cost"]["steps"] for trial in found["trials"]} == {
        "a-seed0": 4, "a-seed1": 2, "_b-seed0": 1, "c-seed0": 0, "base": 0,
    }  # fmt: skip
    assert found["failed"] == {"_b-seed0.train": "<b>no</b> memory"}
    assert [suite["suite"] for suite in found["suites"]] == ["own"]
    # A study that was interrupted has the same scores, but other times.
    assert "training h" not in (two_seeds.out / "table.md").read_text(encoding="utf-8")
    assert "training h" in (two_seeds.out / "costs.md").read_text(encoding="utf-8")
    page = (two_seeds.out / "study.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;no&lt;/b&gt; memory" in page
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture, validate=True) == b"a picture"
