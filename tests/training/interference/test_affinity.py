"""Task affinity: the combinations that are trained, each as a separate run."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from scimult.config import load_config
from scimult.errors import ConfigError
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.training.interference import affinity
from scimult.training.interference.affinity import combinations_of, only_tasks, train_affinity
from scimult.training.interference.gradients import training_rounds
from scimult.training.plan import plan_run
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
    train_affinity(config, plan, ["search"], 2, tmp_path / "runs")
    assert [(schedule.steps, schedule.epochs) for schedule in trained] == [(2, None)]
    assert len(training_rounds(config, plan, build_model(config), ["search"], 1)) == 1


def test_affinity_rows_are_runs(tmp_path: Path) -> None:
    folder = tmp_path
    prepare_corpus(folder)
    rates = {"search": 2.0, "classification": 1.0}
    sources = ["world.search", "world.classification"]
    section = {"sampling": "explicit", "rates": rates, "sources": sources}
    config = run_config(folder, "run", model={"variant": "vanilla"}, data=section)
    tasks = ["search", "classification"]
    rows = train_affinity(config, plan_run(config), tasks, 2, folder / "runs")
    assert [row.trained_on for row in rows] == [(), *combinations_of(tasks)]
    for row in rows:
        assert set(row.scores) == set(tasks)
        assert all(0 < score <= 1 for score in row.scores.values())
    alone = load_config(PretrainConfig, folder / "runs" / "search" / "config.yaml")
    assert alone.data.sources == ["world.search"]
    assert alone.data.rates == {"search": 2.0}
    assert alone.schedule.steps == 2
    lines = [len(metrics(path)) for path in sorted((folder / "runs").glob("*/"))]
    again = train_affinity(config, plan_run(config), tasks, 2, folder / "runs")
    assert [row.scores for row in again] == [row.scores for row in rows]
    assert lines == [len(metrics(path)) for path in sorted((folder / "runs").glob("*/"))]
    # A model trained again at the same place does not go on with the runs of the old one.
    weights = folder / "base" / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match="started from other weights"):
        train_affinity(config, plan_run(config), tasks, 2, folder / "runs")
