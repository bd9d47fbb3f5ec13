"""Tables of a study from made-up per-query scores: averages, corrections, gaps, marks."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.repeated import Difference, SuiteFindings
from scimult.evaluation.reporting.repeated import score_table
from scimult.evaluation.resampling import holm
from scimult.evaluation.results import Result, load_result, save_result
from scimult.evaluation.suites import Suite
from scimult.studies import states, tables, work
from scimult.studies.config import EvaluationConfig, MergeConfig, RunConfig, StudyConfig
from scimult.studies.plan import Plan, SuitePlan
from scimult.studies.tables import find
from scimult.studies.trials import Trial, write_mark
from scimult.studies.work import Evaluating, Merging, drop_other_scores, scored_sets
from scimult.training.config import PretrainConfig
from scimult.training.stages import Stage
from tests.benchmark_sets import benchmark
from tests.made_results import set_result, write_result

TASKS = {"cisi": "search", "cacm": "search", "links": "link_prediction", "years": "regression"}
RNG = np.random.default_rng(0)
BASE = {name: RNG.random(50) * 0.5 for name in TASKS}
SEEDS = {"vanilla": [0, 1, 2], "good": [0, 1], "base": [None]}
SCORES = {
    (run, seed): {
        name: BASE[name] + (run == "good") * 0.2 + RNG.normal(0, 0.005) + RNG.normal(0, 0.05, 50)
        for name in TASKS
    }
    for run, seeds in SEEDS.items()
    for seed in seeds
}


def _plan(folder: Path, names: list[str]) -> Plan:
    """Return the plan of a study with results in a folder."""
    runs = {name: RunConfig() for name in ("vanilla", "good")} | {"base": RunConfig(model="base")}
    section = EvaluationConfig(suite="own", data=str(folder))
    study = StudyConfig(
        name="made up",
        output=str(folder),
        baseline="vanilla",
        config="run.yaml",
        runs=runs,
        evaluate=[section],
    )
    trials = [
        Trial(run, seed, run if seed is None else f"{run}-seed{seed}", folder, [], [])
        for run, seeds in SEEDS.items()
        for seed in seeds
    ]
    sets = {name: benchmark(name, "search", "search", ["ndcg@10"]) for name in names}
    suite = Suite(name="own", description="Mine", how_to_get="x", benchmarks=sets)
    return Plan(study, {trial.key: trial for trial in trials}, {"own": SuitePlan(section, suite)})


def _write(plan: Plan, names: list[str], untested: str = "") -> None:
    """Write the results of every trial on some sets."""
    out = plan.results("own")
    for trial in plan.trials.values():
        sets = {}
        for name in names:
            (out.parent.parent / f"{name}.tsv").write_text(name)
            scores = SCORES[trial.run, trial.seed][name]
            queries = [f"q{row}" for row in range(50)]
            write_per_query(out, trial.key, name, queries, {"ndcg@10": scores.tolist()})
            sets[name] = set_result(
                "ndcg@10",
                {"ndcg@10": float(scores.mean())},
                task=TASKS[name],
                counts={"queries": 50},
                files={f"{name}.tsv": hashlib.sha256(name.encode()).hexdigest()},
                resampled=[] if name == untested else ["ndcg@10"],
            )
        made = {name: benchmark(name, "search", "search", ["ndcg@10"]) for name in names}
        benchmarks = {name: entry.model_dump(mode="json") for name, entry in made.items()}
        write_result(out, trial.key, sets, benchmarks)


def _found(plan: Plan) -> SuiteFindings:
    found = find(plan, "own")
    assert found is not None
    return found


def _row(found: SuiteFindings, run: str, task: str, name: str) -> Difference:
    return next(
        row for row in found.differences if (row.run, row.task, row.name) == (run, task, name)
    )


def test_averages_are_those_of_sets_and_seeds(tmp_path: Path) -> None:
    names = ["cisi", "cacm", "links"]
    plan = _plan(tmp_path, names)
    _write(plan, names)
    found = _found(plan)
    places = [(row.task, row.name) for row in found.scores if row.run == "good"]
    # A task with one set has no average of its own.
    assert places == [("all", "average"), ("search", "average"), *((TASKS[n], n) for n in names)]
    by_seed = [
        np.mean([SCORES["good", seed][name].mean() for name in names]) for seed in SEEDS["good"]
    ]
    average = next(row for row in found.scores if row.run == "good" and row.name == "average")
    assert average.scores == pytest.approx(by_seed, rel=1e-12)
    assert average.mean == pytest.approx(np.mean(by_seed), rel=1e-12)
    assert average.sd == pytest.approx(np.std(by_seed, ddof=1), rel=1e-9)
    # Degrees of freedom are those of all runs with seeds: 2 + 1, and more where queries matter.
    row = _row(found, "good", "all", "average")
    assert row.degrees is not None
    assert row.degrees >= 3
    assert row.seeds == (2, 3)


def test_p_is_corrected_within_sets_and_within_averages(tmp_path: Path) -> None:
    names = ["cisi", "cacm", "links"]
    plan = _plan(tmp_path, names)
    _write(plan, names)
    found = _found(plan)
    for rows in (
        [row for row in found.differences if row.name != "average"],
        [row for row in found.differences if (row.task, row.name) == ("all", "average")],
    ):
        corrected = holm([row.p for row in rows if row.p is not None])
        assert [row.p_holm for row in rows] == corrected
    table = score_table(found)
    marks = {row[0].text: row[2].mark for row in table.rows}
    assert marks == {"vanilla": "", "good": "better", "base": ""}
    assert [row[1].text for row in table.rows] == ["3", "2", "–"]
    assert table.rows[1][2].bold


def test_a_set_without_scores_per_query_has_no_test(tmp_path: Path) -> None:
    names = ["cisi", "years"]
    plan = _plan(tmp_path, names)
    _write(plan, names, untested="years")
    found = _found(plan)
    for place in (("regression", "years"), ("all", "average")):
        row = _row(found, "good", *place)
        assert row.difference > 0.1
        assert (row.low, row.high, row.p, row.p_holm) == (None, None, None, None)
    assert _row(found, "good", "search", "cisi").p is not None
    assert any(
        "years: not every model has ndcg@10 for several queries" in note for note in found.notes
    )


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    names = ["cisi", "cacm"]
    plan = _plan(tmp_path, names)
    assert find(plan, "own") is None
    _write(plan, names)
    (plan.results("own") / "good-seed1" / "result.json").unlink()
    (plan.results("own") / "base" / "result.json").unlink()
    found = _found(plan)
    assert "No result yet of good-seed1, base." in found.notes
    assert _row(found, "good", "search", "cisi").seeds == (1, 3)
    assert {row.run for row in found.scores} == {"vanilla", "good"}


def test_the_state_reads_each_result_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every result for every trial, whose time left is estimated."""
    plan = _plan(tmp_path, ["cisi", "cacm"])
    _write(plan, ["cisi"])
    read: list[Path] = []

    def counted(path: Path) -> Result:
        read.append(path)
        return load_result(path)

    for module in (tables, work):
        monkeypatch.setattr(module, "load_result", counted)
    monkeypatch.setattr(work, "scored_alike", lambda before, now: True)
    monkeypatch.setattr(states, "making_of", lambda plan, trial: None)
    for trial in plan.trials.values():
        Evaluating(plan, trial, "own").begin()
    found = states.states(plan)
    assert [(state.scored, state.asked) for state in found] == [(1, 2)] * len(plan.trials)
    assert all(state.hours == pytest.approx(1.0 / 3600) for state in found)
    assert len(read) == 2 * len(plan.trials)
    # A run that would score them again must not call them scored before.
    (tmp_path / "model.safetensors").write_text("other weights")
    found = states.states(plan)
    assert [(state.scored, state.asked) for state in found] == [(0, 2)] * len(plan.trials)
    assert all(state.hours == pytest.approx(2.0 / 3600) for state in found)


def test_hours_are_those_of_the_ranks_of_each_step(tmp_path: Path) -> None:
    """A run may go on with other ranks; lines of older versions do not name theirs."""
    plan = _plan(tmp_path, ["cisi"])
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"ranks": 4}))
    steps = [{"ranks": 2}, {"ranks": 8}, {}]
    lines: list[dict[str, Any]] = [{"step": 0, "metrics": {}}]
    numbers = {"loss": 0.0, "tokens": 1, "seconds": 10.0, "metrics": {}}
    lines += [{"step": n, **numbers, **own} for n, own in enumerate(steps, 1)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    config = PretrainConfig.model_construct(output=str(run))
    trial = Trial("good", 0, "good-seed0", run, [Stage("good", config)], [])
    assert tables.cost_of(plan, trial).training_seconds == 10.0 * (2 + 8 + 4)


@pytest.mark.parametrize(
    "files",
    [
        ["model.safetensors"],
        ["pytorch_model.bin"],
        ["a.safetensors", "b.safetensors", "model.safetensors.index.json"],
        ["a.bin", "b.bin", "pytorch_model.bin.index.json"],
    ],
)
def test_scores_of_an_existing_model_are_of_all_its_files(tmp_path: Path, files: list[str]) -> None:
    model = tmp_path / "base"
    (model / "1_Pooling").mkdir(parents=True)
    index = json.dumps({"weight_map": {"x": files[0], "y": files[1]}}) if len(files) > 1 else ""
    for name in files:
        (model / name).write_text(index if name.endswith("json") else name)
    others = ["config.json", "vocab.txt", "1_Pooling/config.json"]
    for name in others:
        (model / name).write_text("{}")
    plan = _plan(tmp_path, ["cisi"])
    trial = replace(plan.trials["base"], folder=model)
    before = Evaluating(plan, trial, "own").inputs()
    assert before["base"]
    for name in [*files[:2], *others]:
        content = (model / name).read_text()
        (model / name).write_text("changed")
        assert Evaluating(plan, trial, "own").inputs() != before, name
        (model / name).write_text(content)
    (model / "README.md").write_text("new")
    assert Evaluating(plan, trial, "own").inputs() == before


def test_a_merge_is_made_again_when_the_settings_of_a_model_change(tmp_path: Path) -> None:
    """Pooling, for one, which no weight tells: the merged model has that of the first."""
    model, merged = tmp_path / "base", tmp_path / "runs" / "soup"
    for folder in (model, merged):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("weights")
        (folder / "config.json").write_text("{}")
    plan = _plan(tmp_path, ["cisi"])
    merge = MergeConfig(models=["base", "vanilla"])
    soup = Trial("soup", 0, "soup-seed0", merged, [], [])
    trials = {**plan.trials, "base": replace(plan.trials["base"], folder=model), soup.key: soup}
    study = plan.study.model_copy(update={"runs": {**plan.runs, "soup": RunConfig(merge=merge)}})
    plan = Plan(study, trials, plan.suites)
    jobs = Merging(plan, soup, merge), Evaluating(plan, soup, "own")
    for job, changed in zip(jobs, (model, merged), strict=True):
        before = job.inputs()
        (changed / "config.json").write_text('{"pooling": "mean"}')
        assert job.inputs() != before


def test_a_score_holds_wherever_the_files_come_from(tmp_path: Path) -> None:
    """Evaluation keeps such scores; otherwise the job would never be done."""
    plan = _plan(tmp_path, ["cisi"])
    _write(plan, ["cisi"])
    trial, path = plan.trials["base"], plan.results("own") / "base" / "result.json"
    scored = plan.suites["own"].suite.benchmarks["cisi"].model_dump(mode="json")
    for change, done in (
        ({"remote": {"base": "https://old.org"}}, True),
        ({"mode": "beir"}, False),
    ):
        suite = {"name": "own", "benchmarks": {"cisi": {**scored, **change}}}
        save_result(load_result(path).model_copy(update={"suite": suite}), plan.results("own"))
        assert scored_sets(plan, trial, "own") == {"cisi": done}


def test_scores_on_other_data_do_not_count(tmp_path: Path) -> None:
    plan = _plan(tmp_path, ["cisi", "cacm"])
    _write(plan, ["cisi", "cacm"])
    (tmp_path / "cacm.tsv").write_text("other")
    assert scored_sets(plan, plan.trials["base"], "own") == {"cisi": True, "cacm": False}
    job = "good-seed1.evaluate.own"
    write_mark(plan.out, job, Evaluating(plan, plan.trials["good-seed1"], "own").inputs())
    found = find(plan, "own", [job, "base.evaluate.own"])
    assert found is not None
    assert "No result yet of base." in found.notes  # it was another model
    assert _row(found, "good", "search", "cisi").seeds == (2, 3)
    assert _row(found, "good", "search", "cacm").seeds == (1, 3)


def test_only_scores_of_the_study_are_dropped(tmp_path: Path) -> None:
    plan = _plan(tmp_path, ["cisi", "cacm"])
    _write(plan, ["cisi", "cacm"])
    # A run that has left the study, and a system that was never in it.
    for name in ("gone-seed0", "by_hand"):
        shutil.copytree(plan.results("own") / "base", plan.results("own") / name)
        path = plan.results("own") / name / "result.json"
        save_result(load_result(path).model_copy(update={"system": name}), plan.results("own"))
    for name in ("base", "good-seed1", "gone-seed0"):
        write_mark(plan.out, f"{name}.evaluate.own", {})
    drop_other_scores(plan)
    (tmp_path / "cacm.tsv").write_text("other")
    drop_other_scores(plan)
    left = {
        name: list(load_result(plan.results("own") / name / "result.json").sets)
        for name in ("base", "good-seed1", "gone-seed0", "by_hand")
    }
    assert left.pop("by_hand") == ["cisi", "cacm"]
    assert all(sets == ["cisi"] for sets in left.values())
    (tmp_path / "cisi.tsv").unlink()
    drop_other_scores(plan)
    assert not (plan.results("own") / "base").exists()
