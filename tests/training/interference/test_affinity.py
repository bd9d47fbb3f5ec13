"""Task affinity: which combinations are trained, and that each is a run of its own."""

from __future__ import annotations

from pathlib import Path

from scimult.config import load_config
from scimult.training.config import PretrainConfig
from scimult.training.interference.affinity import combinations_of, train_affinity
from scimult.training.plan import plan_run
from tests.training.corpus import metrics, prepare_corpus, run_config


def test_affinity_trains_each_pair_and_all() -> None:
    assert combinations_of(["a", "b"]) == [("a",), ("b",), ("a", "b")]
    four = combinations_of(["a", "b", "c", "d"])
    # The eleven rows of the paper's table.
    assert len(four) == 11
    assert four[-1] == ("a", "b", "c", "d")


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
    lines = [len(metrics(path)) for path in sorted((folder / "runs").iterdir())]
    again = train_affinity(config, plan_run(config), tasks, 2, folder / "runs")
    assert [row.scores for row in again] == [row.scores for row in rows]
    assert lines == [len(metrics(path)) for path in sorted((folder / "runs").iterdir())]
