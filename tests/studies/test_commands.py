"""The commands that a study runs, as its logs show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.evaluation.suites import Suite
from scimult.studies.config import (
    EvaluationConfig,
    LaunchConfig,
    MergeConfig,
    RunConfig,
    StudyConfig,
)
from scimult.studies.jobs import Slot
from scimult.studies.plan import Plan, SuitePlan
from scimult.studies.trials import Trial, key_of
from scimult.studies.work import Evaluating, Merging, Training
from tests.benchmark_sets import benchmark

SEEDS: dict[str, list[int | None]] = {"one": [0, 1], "two": [0, 1, 2], "base": [None]}


def _plan(launch: dict[str, Any], **runs: RunConfig) -> Plan:
    section = EvaluationConfig(suite="own", data="data", sets=["cisi"], overrides=["a.mode=beir"])
    given = {"one": RunConfig(), "two": RunConfig(stage="last"), "base": RunConfig(model="base")}
    study = StudyConfig(
        name="made up",
        output="out",
        baseline="base",
        config="run.yaml",
        runs={**given, **runs},
        launch=LaunchConfig(**launch),
        evaluate=[section],
        options={"dtype": "float32"},
    )
    trials = {}
    for run, seeds in {**SEEDS, **{name: [None] for name in runs}}.items():
        for seed in seeds:
            key = key_of(run, seed)
            trials[key] = Trial(run, seed, key, Path(key), [], ["x=1"] if seed else [])
    sets = {"cisi": benchmark("cisi", "search", "search", ["ndcg@10"])}
    suite = Suite(name="own", description="Mine", how_to_get="x", benchmarks=sets)
    return Plan(study, trials, {"own": SuitePlan(section, suite)})


def _after(command: list[str], *options: str) -> list[str]:
    """Return the values of options, in order."""
    return [command[place + 1] for place, word in enumerate(command) if word in options]


@pytest.mark.parametrize(
    ("given", "shares"),
    [({}, [0.25, 0.25, *[1 / 6] * 3]), ({"shares": [0.2, 0.6]}, [0.1, 0.1, 0.2, 0.2, 0.2])],
)
def test_a_merge_of_all_seeds_spreads_each_runs_share(
    given: dict[str, Any], shares: list[float]
) -> None:
    merge = MergeConfig(models=["one", "two"], all_seeds=True, **given)
    plan = _plan({}, soup=RunConfig(merge=merge))
    command = Merging(plan, plan.trials["soup"], merge).command(Slot())
    models = ["one-seed0", "one-seed1", "two-seed0", "two-seed1", "two-seed2"]
    assert command[3:9] == ["merge", *models]
    assert list(map(float, _after(command, "--share"))) == pytest.approx(shares)
    assert _after(command, "--out") == ["soup"]
    assert "--method" not in command


def test_a_merge_of_one_seed_takes_models_of_this_seed() -> None:
    merge = MergeConfig(
        models=["one", "two"], method="task_vectors", base="base", by_depth=(0.5, 1.0)
    )
    plan = _plan({}, soup=RunConfig(merge=merge))
    trial = Trial("soup", 1, "soup-seed1", Path("soup-seed1"), [], [])
    command = Merging(plan, trial, merge).command(Slot())
    assert command[3:6] == ["merge", "one-seed1", "two-seed1"]
    assert "--share" not in command
    assert _after(command, "--method", "--base", "--by-depth") == [
        "task_vectors",
        "base",
        "0.5:1.0",
    ]
    experts = MergeConfig(experts={"search": "one", "links": "two"}, variant="mha_expert")
    command = Merging(plan, trial, experts).command(Slot())
    assert _after(command, "--expert") == ["search=one-seed1", "links=two-seed1"]
    assert _after(command, "--variant") == ["mha_expert"]
    shared = MergeConfig(models=["two"], share_experts=True)
    assert Merging(plan, trial, shared).command(Slot())[-1] == "--share-experts"


def test_training_is_launched_on_the_ranks_and_gpus_of_its_slot() -> None:
    plan = _plan({})
    command = Training(plan, plan.trials["two-seed1"]).command(Slot())
    assert command[1:] == [
        "-m", "scimult.cli.pretrain", "--config", "run.yaml", "--stage", "last", "x=1",
    ]  # fmt: skip
    plan = _plan({"ranks": 2, "devices": [2, 3]})
    command = Training(plan, plan.trials["one-seed0"]).command(Slot((2, 3)))
    assert command[1:3] == ["-m", "deepspeed.launcher.runner"]
    assert _after(command, "--include") == ["localhost:2,3"]
    assert command[-4:] == ["--module", "scimult.cli.pretrain", "--config", "run.yaml"]
    command = Training(plan, plan.trials["one-seed0"]).command(Slot())
    assert _after(command, "--num_gpus") == ["2"]
    assert "--include" not in command


def test_an_evaluation_is_of_the_suites_sets_and_the_models_options() -> None:
    plan = _plan({}, cls=RunConfig(model="base", options={"pooling": "cls"}))
    job = Evaluating(plan, plan.trials["cls"], "own")
    assert job.command(Slot())[3:] == [
        "evaluate", "--suite", "own", "--data", "data", "--out", "out/results/own",
        "--model", "cls=cls,dtype=float32,pooling=cls", "--sets", "cisi",
        "--resume", "a.mode=beir",
    ]  # fmt: skip
    assert job.needs == []
    assert Evaluating(plan, plan.trials["one-seed1"], "own").needs == ["one-seed1.train"]
