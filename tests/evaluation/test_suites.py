"""Suites as data: those that come with the toolkit, overrides, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.data.synthetic import WorldSettings, make_world, write_world
from scimult.errors import ConfigError, SciMultError, UnknownNameError
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.suites import load_suite, suite_names
from scimult.evaluation.systems import BM25System
from scimult.tasks import default_tasks

OWN = """
name: own
description: mine
how_to_get: ask me
benchmarks:
  a:
    task: search
    protocol: search
    folder: a
    metrics: [ndcg@10]
    source: me
    licence: mine
"""


@pytest.mark.parametrize("name", suite_names())
def test_shipped_suites_load(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    for entry in suite.benchmarks.values():
        assert entry.task in default_tasks()
        assert entry.protocol in PROTOCOLS
        assert entry.source
        assert entry.licence


def test_every_protocol_of_the_paper_is_in_the_shipped_suites() -> None:
    for name in ("first", "demo"):
        used = {entry.protocol for entry in load_suite(name).benchmarks.values()}
        assert used == set(PROTOCOLS)


def test_overrides_and_selection() -> None:
    suite = load_suite("first", ["benchmarks.vis_cite.mode=paper"])
    assert suite.benchmarks["vis_cite"].mode == "paper"
    assert load_suite("first").benchmarks["vis_cite"].mode == "default"
    assert list(suite.select(["cacm", "vis_cite"])) == ["vis_cite", "cacm"]
    assert suite.select([]) == suite.benchmarks
    with pytest.raises(UnknownNameError, match="did you mean 'cacm'"):
        suite.select(["cacn"])


def test_the_generated_world_has_the_data_of_suite_demo(tmp_path: Path) -> None:
    """Its files are read without a complaint, and BM25 finds something in every set."""
    write_world(make_world(WorldSettings(papers=300)), tmp_path / "world")
    suite = load_suite("demo")
    sets = load_sets(suite, tmp_path / "world/eval")
    result = evaluate(BM25System(), suite, sets, tmp_path / "out")
    for entry in result.sets.values():
        assert 0 < entry.scores[entry.main_metric] < 1
        assert entry.left_out == {}


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert load_suite(str(path)).benchmarks["a"].main_metric == "ndcg@10"


def test_an_unknown_suite_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="demo, first"):
        load_suite("frist")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("protocol=serach", ConfigError, "benchmarks.a.protocol"),
        ("metric=[map]", ConfigError, "unknown key (did you mean 'metrics'?)"),
        ("metrics=[]", ConfigError, "benchmarks.a.metrics"),
        ("metrics=[map@x]", SciMultError, "a cut-off is a positive integer"),
        ("metrics=[nDCG]", SciMultError, "unknown metric"),
        ("metrics=[macro_f1]", SciMultError, "macro_f1 and classification_coarse go together"),
        ("name_matching=words", SciMultError, "name_matching is for classification_fine"),
        ("mode=paper", SciMultError, "mode 'paper' is for link_retrieval"),
    ],
)
def test_bad_suites(tmp_path: Path, change: str, error: type[SciMultError], message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    with pytest.raises(error) as caught:
        load_suite(str(path), [f"benchmarks.a.{change}"])
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_template_of_a_suite_loads(repository: Path) -> None:
    suite = load_suite(str(repository / "configs/evaluate/template.yaml"))
    assert list(suite.benchmarks) == ["my_search", "my_labels"]
