"""Task affinity: the combinations that are trained, each as a separate run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from scimult.config import load_config, save_config
from scimult.data.pairs import PairFile
from scimult.data.teacher import TeacherScores
from scimult.errors import ConfigError
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.training.interference import affinity
from scimult.training.interference.affinity import (
    affinity_runs,
    combinations_of,
    only_tasks,
    train_affinity,
)
from scimult.training.interference.gradients import training_rounds
from scimult.training.interference.run import run_interference
from scimult.training.plan import RunPlan, plan_run
from tests.training.corpus import metrics, prepare_corpus, run_config


def test_affinity_trains_each_pair_and_all() -> None:
    assert combinations_of(["a", "b"]) == [("a",), ("b",), ("a", "b")]
    four = combinations_of(["a", "b", "c", "d"])
    # The eleven rows of the paper's table.
    assert len(four) == 11
    assert four[-1] == ("a", "b", "c", "d")


def test_settings_of_other_tasks_are_dropped(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    config = run_config(
        tmp_path,
        "run",
        data={"hard_negatives": ["search"]},
        loss={"embedding_teacher": {"vectors": "v", "tasks": ["search"]}},
        dev={"metric": "dev/world.search/mrr", "patience": 2},
        checkpoint={"keep_best": True, "export": "best"},
    )
    config.checkpoint.keep_heads = True
    plan = plan_run(run_config(tmp_path, "run"))
    for tasks, hard_negatives in ((("search",), ["search"]), (("classification",), False)):
        config_of_tasks = only_tasks(config, plan, tasks)
        assert config_of_tasks.data.hard_negatives == hard_negatives
        teacher = config_of_tasks.loss.embedding_teacher
        assert (teacher.tasks if teacher else None) == (hard_negatives or None)
        assert not config_of_tasks.selects
        # The saved configuration is read again when the run is continued.
        PretrainConfig.model_validate(config_of_tasks.model_dump())
        config_of_tasks.loss.embedding_teacher = None
        assert {source.task for source in plan_run(config_of_tasks).sources} == set(tasks)


def as_views(plan: RunPlan, task: str) -> RunPlan:
    """Return the plan with views of texts as the only pairs of a task."""
    sources = [
        replace(source, view="independent_crop") if source.task == task else source
        for source in plan.sources
        if isinstance(source, PairFile)
    ]
    return replace(plan, sources=list(sources))


def scores_of(plan: RunPlan, task: str) -> TeacherScores:
    """Return a teacher's scores of all positives and hard negatives of a task."""
    queries, candidates = [], []
    for source in plan.sources:
        if isinstance(source, PairFile) and source.task == task:
            for lists in (source.positives, source.negatives):
                queries.append(source.queries[lists.owners])
                candidates.append(lists.values)
    pairs = np.concatenate(queries), np.concatenate(candidates)
    return TeacherScores(*pairs, np.zeros(len(pairs[0])))


def test_what_has_nothing_left_to_act_on_is_dropped(tmp_path: Path) -> None:
    """A temperature, teacher scores or vectors that some group does not have are no error."""
    prepare_corpus(tmp_path)
    plan = plan_run(run_config(tmp_path, "run"))
    config = run_config(
        tmp_path,
        "run",
        data={"sampling_temperature": 2},
        loss={"embedding_teacher": {"vectors": "v"}, "distillation": {"name": "kl"}},
    )
    plan = replace(as_views(plan, "classification"), teacher=scores_of(plan, "search"))
    search = only_tasks(config, plan, ["search"])
    assert search.loss.embedding_teacher == config.loss.embedding_teacher
    assert search.loss.distillation == config.loss.distillation
    other = only_tasks(config, plan, ["classification"])
    assert other.loss.embedding_teacher is None
    assert other.loss.distillation is None
    pair = only_tasks(config, plan, ["link_prediction", "classification"])
    assert pair.loss.embedding_teacher is not None
    for one in (search, other, pair):
        PretrainConfig.model_validate(one.model_dump())
        one.loss.embedding_teacher = one.loss.distillation = None
        # The folder has one source of each task, so that equal_tasks does not see sizes.
        assert one.data.sampling_temperature == 1
        plan_run(one)
    by_size = run_config(
        tmp_path, "run", data={"sampling": "proportional", "sampling_temperature": 2}
    )
    tasks = ["link_prediction", "search"]
    assert only_tasks(by_size, plan, tasks).data.sampling_temperature == 2
    assert only_tasks(by_size, plan, tasks[:1]).data.sampling_temperature == 1


def test_missing_dev_pairs_are_found_before_the_first_run(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    config = run_config(tmp_path, "run")
    plan = replace(plan_run(config), dev_sets=[])
    with pytest.raises(ConfigError, match="but the sources have none.*--affinity-steps"):
        affinity_runs(config, plan, ["search", "classification"], 2, tmp_path / "runs")


@pytest.mark.long
def test_the_map_outlives_a_failed_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_corpus(tmp_path)
    save_config(run_config(tmp_path, "run", model={"variant": "vanilla"}), tmp_path / "run.yaml")

    def fail(*_: Any, **__: Any) -> Path:
        raise ConfigError("the disk is full", fix="make room")

    monkeypatch.setattr(affinity, "pretrain", fail)
    options: dict[str, Any] = {"config": tmp_path / "run.yaml", "rounds": 2, "affinity_steps": 2}
    with pytest.raises(ConfigError, match="the disk is full"):
        run_interference(tmp_path / "base", tmp_path / "out", **options)
    assert "Interference between tasks" in (tmp_path / "out/interference.md").read_text("utf-8")


def test_a_run_by_epochs_is_measured_by_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_corpus(tmp_path)
    length = {"steps": None, "epochs": 1}
    config = run_config(tmp_path, "run", model={"variant": "vanilla"}, schedule=length)
    plan, trained = plan_run(config), []

    def pretrain(of_group: PretrainConfig) -> Path:
        trained.append(of_group.schedule)
        return tmp_path / "base"

    monkeypatch.setattr(affinity, "pretrain", pretrain)
    runs = affinity_runs(config, plan, ["search"], 2, tmp_path / "runs")
    train_affinity(config, plan, runs, tmp_path / "runs")
    assert [(schedule.steps, schedule.epochs) for schedule in trained] == [(2, None)]
    assert len(training_rounds(config, plan, build_model(config), ["search"], 1)) == 1


@pytest.mark.long
def test_affinity_rows_are_runs(tmp_path: Path) -> None:
    folder = tmp_path
    prepare_corpus(folder)
    rates = {"search": 2.0, "classification": 1.0}
    sources = ["world.search", "world.classification"]
    section = {"sampling": "explicit", "rates": rates, "sources": sources}
    config = run_config(folder, "run", model={"variant": "vanilla"}, data=section)
    tasks = ["search", "classification"]
    plan = plan_run(config)
    runs = affinity_runs(config, plan, tasks, 2, folder / "runs")
    rows = train_affinity(config, plan, runs, folder / "runs")
    assert [row.trained_on for row in rows] == [(), *combinations_of(tasks)]
    for row in rows:
        assert set(row.scores) == set(tasks)
        assert all(0 < score <= 1 for score in row.scores.values())
    alone = load_config(PretrainConfig, folder / "runs" / "search" / "config.yaml")
    assert alone.data.sources == ["world.search"]
    assert alone.data.rates == {"search": 2.0}
    assert alone.schedule.steps == 2
    lines = [len(metrics(path)) for path in sorted((folder / "runs").glob("*/"))]
    again = train_affinity(config, plan, runs, folder / "runs")
    assert [row.scores for row in again] == [row.scores for row in rows]
    assert lines == [len(metrics(path)) for path in sorted((folder / "runs").glob("*/"))]
    # A model trained again at the same place does not go on with the runs of the old one.
    weights = folder / "base" / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match="started from other weights"):
        train_affinity(config, plan, runs, folder / "runs")


@pytest.mark.long
def test_a_call_that_cannot_go_on_leaves_the_report(tmp_path: Path) -> None:
    prepare_corpus(tmp_path)
    sources = {"sources": ["world.search", "world.classification"]}
    config = run_config(tmp_path, "run", model={"variant": "vanilla"}, data=sources)
    save_config(config, tmp_path / "run.yaml")
    options: dict[str, Any] = {"config": tmp_path / "run.yaml", "rounds": 2}
    run_interference(tmp_path / "base", tmp_path / "out", affinity_steps=1, **options)
    report = (tmp_path / "out" / "interference.json").read_bytes()
    with pytest.raises(ConfigError, match="started with a different schedule"):
        run_interference(tmp_path / "base", tmp_path / "out", affinity_steps=2, **options)
    weights = tmp_path / "base" / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match="trained on other base"):
        run_interference(tmp_path / "base", tmp_path / "out", affinity_steps=1, **options)
    assert (tmp_path / "out" / "interference.json").read_bytes() == report
