"""Suites as data: those that ship with the toolkit, overrides, and refused ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from scimult.errors import ConfigError, SciMultError, UnknownNameError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import FORMATS
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.reporting.published import AVERAGE, publications
from scimult.evaluation.results import SetResult, averages
from scimult.evaluation.suites import load_suite, suite_names
from scimult.evaluation.systems import BM25System
from scimult.preparation.world import WorldSettings, make_world, write_world
from scimult.tasks import catalogue, default_tasks
from tests.benchmark_sets import write_search
from tests.made_results import set_result
from tests.raw_corpus import write_jsonl

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
        assert entry.task in catalogue()
        # Every model knows the default tasks.
        assert (entry.fallback_task or entry.task) in default_tasks()
        assert entry.protocol in set(PROTOCOLS)
        assert entry.source
        assert entry.licence


def test_every_protocol_and_format_is_in_a_shipped_suite() -> None:
    entries = [entry for name in suite_names() for entry in load_suite(name).benchmarks.values()]
    assert {entry.protocol for entry in entries} == set(PROTOCOLS)
    assert {entry.format for entry in entries} == set(FORMATS)


def test_scirepeval_averages_the_columns_of_the_paper() -> None:
    """27 columns, 7 of them in-train; S2AND, the 27th, is a suite of its own."""
    suite = load_suite("scirepeval")
    columns = {"in_train": 0, "out_of_train": 0}
    sets = {}
    for name, entry in suite.benchmarks.items():
        endings = [f"+{shot.size}shot" for shot in (entry.probe.few_shot if entry.probe else [])]
        scores = {metric + ending: 0.5 for metric in entry.metrics for ending in ("", *endings)}
        sets[name] = _result(entry, scores)
        assert entry.group is not None
        columns[entry.group] += len(sets[name].averaged)
    assert columns == {"in_train": 7, "out_of_train": 19}
    sets["scidocs_cite"].scores.update(map=0.0, ndcg=1.0)
    sets["fos"].scores["macro_f1+10shot"] = 0.8
    means = averages(sets)
    assert means["in_train"] == pytest.approx((6 * 0.5 + (0.5 + 0.8 + 0.5) / 3) / 7)
    assert means["out_of_train"] == pytest.approx(0.5)
    assert means["all"] == pytest.approx((7 * means["in_train"] + 19 * 0.5) / 26)


@pytest.mark.parametrize(
    ("name", "average"), [("Table 3", "fine"), ("Table 5", "retrieval"), ("Table 8", "search")]
)
def test_scimult_averages_what_the_paper_averages(name: str, average: str) -> None:
    """From the printed scores of every system, within the rounding of two decimals."""
    [paper] = [paper for paper in publications() if "Zhang et al. 2023" in paper.paper]
    [table] = [table for table in paper.tables if table.name == name]
    benchmarks = load_suite("scimult").benchmarks
    for row in table.rows.values():
        printed = dict(zip(table.columns, row, strict=True))
        scores = {
            column.removeprefix("scimult:"): score / 100
            for column, score in printed.items()
            if score is not None and column != AVERAGE
        }
        sets = {
            set_name: _result(
                entry, {metric: scores.get(f"{set_name}/{metric}", 0.0) for metric in _all(entry)}
            )
            for set_name, entry in benchmarks.items()
        }
        assert 100 * averages(sets)[average] == pytest.approx(printed[AVERAGE], abs=0.0101)


def _all(entry: Benchmark) -> list[str]:
    """Return a set's metrics and those that its columns name."""
    return [*entry.metrics, *(metric for names in entry.columns.values() for metric in names)]


def _result(entry: Benchmark, scores: dict[str, float]) -> SetResult:
    facts = entry.model_dump(include={"task", "protocol", "mode", "columns", "group"})
    return set_result(entry.main_metric, scores, **facts)


def test_a_folder_that_is_no_set_is_told_from_a_misspelt_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "demo"):
        (tmp_path / name).mkdir()
    with pytest.raises(
        ConfigError, match=r"^mine: a folder, but not in BEIR layout\. Fix: .*qrels"
    ):
        load_suite("mine")
    assert load_suite("demo").benchmarks.keys() >= {"cite", "search"}


def test_an_override_of_a_set_that_the_suite_lacks_is_named() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown benchmark.*vis_cit.*did you mean 'vis_cite'"
    ):
        load_suite("first", ["benchmarks.vis_cit.mode=paper"])

    whole = load_suite("first").benchmarks["cacm"].model_dump(mode="json", exclude_unset=True)
    added = [f"benchmarks.mine.{key}={json.dumps(value)}" for key, value in whole.items()]
    assert (
        load_suite("first", added).benchmarks["mine"].model_dump(mode="json", exclude_unset=True)
        == whole
    )


def test_overrides_and_selection() -> None:
    suite = load_suite("first", ["benchmarks.vis_cite.mode=paper"])
    assert suite.benchmarks["vis_cite"].mode == "paper"
    assert load_suite("first").benchmarks["vis_cite"].mode == "default"
    assert list(suite.select(["cacm", "vis_cite"])) == ["vis_cite", "cacm"]
    assert suite.select([]) == suite.benchmarks
    with pytest.raises(UnknownNameError, match="did you mean 'cacm'"):
        suite.select(["cacn"])


def test_the_generated_world_has_the_data_of_suite_demo(tmp_path: Path) -> None:
    """Its files are read without errors, and BM25 finds something in every set."""
    write_world(make_world(WorldSettings(papers=300)), tmp_path / "world")
    suite = load_suite("demo")
    sets = load_sets(suite, tmp_path / "world/eval")
    result = evaluate(BM25System(), suite, sets, tmp_path / "out")
    for entry in result.sets.values():
        assert 0 < entry.scores[entry.main_metric] < 1
        assert entry.left_out == {}


@pytest.mark.parametrize("name", ["../../up", "a/b", "..", "a\\tb"])
def test_no_set_writes_its_files_elsewhere(tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("  a:", f'  "{name}":'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)own.yaml: .*cannot be the name of a set"):
        load_suite(str(path))


@pytest.mark.parametrize("benchmarks", ["", "[a, b]", "a", "{a: b}", "{}"])
def test_a_suite_without_sets_says_where_they_go(tmp_path: Path, benchmarks: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"{OWN.partition('benchmarks:')[0]}benchmarks: {benchmarks}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"(?s)own.yaml: .*benchmarks"):
        load_suite(str(path))


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert load_suite(str(path)).benchmarks["a"].main_metric == "ndcg@10"


def test_published_solvers_are_a_suite_of_their_own() -> None:
    """SciRepEval with today's solvers and with those of its numbers; SciDocs as published."""
    today, published = load_suite("scirepeval"), load_suite("scirepeval_published")
    assert list(today.benchmarks) == list(published.benchmarks)
    for name, entry in today.benchmarks.items():
        if entry.probe is None:
            assert published.benchmarks[name] == entry
            continue
        regression = entry.protocol == "regression_linear"
        change = {"intercept": False, "solver": "lightning" if regression else "liblinear"}
        assert entry.probe.intercept
        assert published.benchmarks[name].probe == entry.probe.model_copy(update=change)
    probes = [entry.probe for entry in load_suite("scidocs").benchmarks.values() if entry.probe]
    assert [probe.intercept for probe in probes] == [False, False]


def test_an_unknown_suite_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'first'"):
        load_suite("frist")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("protocol=serach", ConfigError, "benchmarks.a.protocol"),
        ("metric=[map]", ConfigError, "unknown key (did you mean 'metrics'?)"),
        ("metrics=[]", ConfigError, "benchmarks.a.metrics"),
        ("metrics=[map@x]", SciMultError, "a cut-off must be a positive integer"),
        ("metrics=[nDCG]", SciMultError, "unknown metric"),
        ("metrics=[macro_f1]", SciMultError, "macro_f1 is not a metric of search"),
        ("format=mdcr", SciMultError, "format 'mdcr' has no data for protocol 'search'"),
        ("probe={costs: [1]}", SciMultError, "probe is required by"),
        ("name_matching=words", SciMultError, "name_matching is only valid for"),
        ("metrics=['recall%20']", SciMultError, "recall%20 is only valid for rerank"),
        ("mode=paper", SciMultError, "mode 'paper' is only valid for link_retrieval"),
        ("columns={x: [ndcg@20]}", SciMultError, "unknown score of columns (value: 'ndcg@20')"),
        ("columns={x: []}", ConfigError, "benchmarks.a.columns.x"),
        ("fields=[title]", SciMultError, "format 'native' has texts of fixed fields"),
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
    assert list(suite.benchmarks) == ["my_search", "my_labels", "my_classes"]


def test_a_linear_model_is_not_scored_on_what_it_was_fitted_to() -> None:
    """Several splits may be scored as one, but train is the linear model's."""
    assert load_suite("linear", ["benchmarks.drsm.split=dev+test"])
    with pytest.raises(SciMultError, match=r"not scored on train.*train\+dev\+test"):
        load_suite("linear", ["benchmarks.drsm.split=train+dev+test"])


@pytest.mark.parametrize(
    "option", ["few_shot=[{size: 8, iterations: 1}]", "multi_label=true", "model=logistic"]
)
def test_a_regression_refuses_options_that_only_classification_has(option: str) -> None:
    with pytest.raises(SciMultError, match="regression_linear fits one"):
        load_suite("scirepeval", [f"benchmarks.cite_count.probe.{option}"])


def test_a_beir_folder_is_a_suite(tmp_path: Path) -> None:
    folder = tmp_path / write_search(tmp_path).folder
    suite = load_suite(str(folder), ["benchmarks.search.metrics=[map]"])
    loaded = load_sets(suite, tmp_path / "elsewhere")
    assert loaded["search"].facts.counts == {"queries": 3, "candidates": 5, "relevant": 4}
    # The same data whatever --data is, so that results can be compared and reported.
    assert load_sets(suite, tmp_path)["search"].facts == loaded["search"].facts
    assert "search/qrels/test.tsv" in loaded["search"].facts.files
    assert suite.benchmarks["search"].metrics == ["map"]


def test_papers_are_asked_for_papers_as_iclr_2022_has_them(tmp_path: Path) -> None:
    """Grades count linearly, and the query paper, itself in the corpus, takes no rank."""
    folder = tmp_path / "iclr2022"
    folder.mkdir()
    titles = ["graph nets", "graph nets again", "graph trees", "gene virus", "stellar dust"]
    papers = [{"_id": f"p{i}", "title": title, "text": title} for i, title in enumerate(titles)]
    for name, rows in (("corpus", papers), ("queries", papers[:1])):
        write_jsonl(folder / f"{name}.jsonl", rows)
    qrels = [("p0", "p1", 1), ("p0", "p2", 2), ("p0", "p3", 0)]
    rows = "".join(f"{query}\t{paper}\t{grade}\n" for query, paper, grade in qrels)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    suite = load_suite("multi_objective", ["benchmarks.iclr2022.expected=null"])
    sets = load_sets(suite, tmp_path, ["iclr2022"])
    assert sets["iclr2022"].facts.counts == {"queries": 1, "candidates": 5, "relevant": 2}
    result = evaluate(BM25System(), suite, sets, tmp_path / "out")
    # BM25 ranks p1 (both words) before p2 (one).
    worst = (1 / math.log2(2) + 2 / math.log2(3)) / (2 / math.log2(2) + 1 / math.log2(3))
    assert result.sets["iclr2022"].scores["ndcg@10"] == pytest.approx(worst, abs=1e-12)


def test_suites_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Results on disk may have the former name of our own layout, too."""
    written = write_search(tmp_path).model_dump()
    assert written["format"] == "native"
    assert Benchmark.model_validate({**written, "format": "house"}).model_dump() == written
