"""Results on disk, averages, and tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from sklearn.metrics import f1_score

from scimult.errors import ConfigError, DataError
from scimult.evaluation.comparison import Settings, compare
from scimult.evaluation.growing import with_intervals
from scimult.evaluation.harness import LoadedSet, evaluate, load_sets
from scimult.evaluation.per_query import read_per_query, write_per_query
from scimult.evaluation.report import make_report, score_table, update_table
from scimult.evaluation.results import Result, averages, folder_of, load_results
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import BM25System, DenseSystem
from scimult.files import read_json, sha256
from scimult.retrieval.runs import read_run
from scimult.table import to_markdown, to_rich
from tests.benchmark_sets import (
    EVERY_KIND,
    PAPERS,
    WordEncoder,
    made_suite,
    write_fields,
    write_jsonl,
    write_links,
    write_search,
)
from tests.made_results import set_result, write_result

Prepared = tuple[Suite, dict[str, LoadedSet], Path]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    made = [write(tmp_path / "data") for write in EVERY_KIND]
    suite = made_suite(*made, name="tiny", description="Tests")
    return suite, load_sets(suite, tmp_path / "data"), tmp_path / "out"


def _evaluate_both(prepared: Prepared) -> list[Result]:
    suite, sets, out = prepared
    return [
        evaluate(BM25System(), suite, sets, out, save_runs=True),
        evaluate(DenseSystem(WordEncoder(), {"folder": "x"}), suite, sets, out, save_runs=True),
    ]


def test_a_result_holds_scores_and_provenance(prepared: Prepared, tmp_path: Path) -> None:
    results = _evaluate_both(prepared)
    assert load_results(prepared[2]) == results
    written = json.loads((prepared[2] / "words/result.json").read_text())
    assert written["settings"] == {"kind": "dense", "similarity": "dot", "folder": "x"}
    assert set(written["sets"]) == {"fields", "coarse", "rerank", "links", "search"}
    search = written["sets"]["search"]
    assert search["counts"] == {"queries": 3, "candidates": 5, "relevant": 4}
    corpus = tmp_path / "data/search/corpus.jsonl"
    assert search["files"]["search/corpus.jsonl"] == sha256(corpus)
    assert {"command", "date", "scimult", "git", "hardware", "libraries", "seed"} <= set(
        written["provenance"]
    )
    assert written["suite"]["benchmarks"]["search"]["metrics"] == ["ndcg@10", "recall@2"]


def test_sets_scored_with_different_options_are_named(prepared: Prepared, tmp_path: Path) -> None:
    """Side by side they look alike: same data, same metric."""
    suite, sets, out = prepared
    titles = suite.benchmarks["search"].model_copy(update={"fields": ["title"]})
    benchmarks = {**suite.benchmarks, "search": titles}
    changed = suite.model_copy(update={"benchmarks": benchmarks})
    results = [evaluate(BM25System(), suite, sets, out)]
    words, changed_sets = DenseSystem(WordEncoder()), load_sets(changed, tmp_path / "data")
    results.append(evaluate(words, changed, changed_sets, out))
    note = "search: systems were scored with different 'fields'."
    assert [text for text in make_report(results).notes if "different" in text] == [note]
    assert note in compare(out, Settings(baseline="BM25")).notes
    assert not [text for text in make_report(results[:1]).notes if "different" in text]


def test_the_same_run_twice_gives_the_same_scores(prepared: Prepared) -> None:
    first, second = _evaluate_both(prepared), _evaluate_both(prepared)
    for one, other in zip(first, second, strict=True):
        for name, entry in one.sets.items():
            assert entry.scores == other.sets[name].scores
    assert len(load_results(prepared[2])) == 2


def test_scores_are_means_of_the_scores_kept_per_query(prepared: Prepared) -> None:
    for result in _evaluate_both(prepared):
        for name, entry in result.sets.items():
            table = read_per_query(prepared[2], result.system, name)
            assert table.query_ids == prepared[1][name].dataset.query_ids
            for metric, score in entry.scores.items():
                if metric == "macro_f1":
                    # scikit-learn takes the empty prediction for a class of its own, without F1.
                    gold, predicted = table.column("gold"), table.column("predicted")
                    classes = sorted({*gold, *predicted} - {""})
                    found = f1_score(gold, predicted, labels=classes, average="macro")
                else:
                    found = np.mean(table.scores([metric]))
                assert found == pytest.approx(score, abs=1e-12)


def test_intervals_hold_their_scores_and_are_drawn_the_same_way_twice(prepared: Prepared) -> None:
    suite, sets, out = prepared
    first, second = (
        evaluate(BM25System(), suite, sets, out, confidence=confidence)
        for confidence in (0.95, 0.95)
    )
    assert load_results(out) == [second]
    wider = evaluate(BM25System(), suite, sets, out, confidence=0.99)
    assert first.provenance["seed"] == 0
    for name, entry in first.sets.items():
        assert entry.intervals == second.sets[name].intervals
        assert entry.intervals.keys() == entry.scores.keys()
        for metric, (low, high) in entry.intervals.items():
            assert 0 <= low <= entry.scores[metric] <= high <= 1
            assert wider.sets[name].intervals[metric][0] <= low
    with_one_query_right = first.sets["search"].intervals["ndcg@10"]
    assert with_one_query_right[0] < with_one_query_right[1]


def test_intervals_against_scipy(tmp_path: Path) -> None:
    """Both draw 10,000 times: 0.15 standard errors are four of an end's."""
    scores = np.random.default_rng(0).random(50)
    write_per_query(tmp_path, "x", "set", [str(row) for row in range(50)], {"map": scores.tolist()})
    facts = {"task": "search", "protocol": "search", "mode": "default", "main_metric": "map"}
    entry = {**facts, "counts": {"queries": 50}, "left_out": {}, "files": {}, "seconds": 1.0}
    result = Result.model_validate(
        {
            "system": "x",
            "settings": {},
            "suite": {},
            "sets": {"set": {**entry, "scores": {"map": float(scores.mean())}}},
            "averages": {},
            "provenance": {},
        }
    )
    found = with_intervals(result, tmp_path, 0.9).sets["set"].intervals["map"]
    ends = stats.bootstrap(
        (scores,), np.mean, n_resamples=10_000, confidence_level=0.9, method="percentile", rng=1
    ).confidence_interval
    assert found == pytest.approx((ends.low, ends.high), abs=0.15 * stats.sem(scores))


def test_runs_are_those_that_were_scored(prepared: Prepared) -> None:
    _evaluate_both(prepared)
    for name in ("links", "rerank", "search", "fields", "fields+names"):
        dataset = prepared[1][name.removesuffix("+names")].dataset
        path = prepared[2] / "words/runs" / f"{name}.run"
        assert len(read_run(path, dataset.query_ids, dataset.candidate_ids)) == 3


def test_averages_are_means_of_main_metrics_per_task_and_over_all_sets(prepared: Prepared) -> None:
    result = _evaluate_both(prepared)[1]
    main = {name: entry.scores[entry.main_metric] for name, entry in result.sets.items()}
    assert result.averages == {
        "classification": pytest.approx((main["fields"] + main["coarse"]) / 2),
        "link_prediction": pytest.approx((main["rerank"] + main["links"]) / 2),
        "search": pytest.approx(main["search"]),
        "all": pytest.approx(sum(main.values()) / 5),
    }
    assert averages(result.sets) == result.averages


def test_the_table_has_a_row_per_metric_and_a_column_per_system(prepared: Prepared) -> None:
    results = _evaluate_both(prepared)
    (table,) = update_table(prepared[2])
    assert table.headings[3:] == ["BM25", "words"]
    assert len(table.rows) == 4 + 1 + 3 + 2 + 2 + 4
    text = to_markdown(table, level=1)
    assert (prepared[2] / "table.md").read_text() == text
    row = next(line for line in text.splitlines() if "| rerank | map |" in line)
    scores = [result.sets["rerank"].scores["map"] for result in results]
    shown = [f"{100 * score:.2f}" for score in scores]
    best = max(shown, key=float)
    wanted = [f"**{cell}**" if cell == best else cell for cell in shown]
    assert row == f"| link_prediction | rerank | map | {wanted[0]} | {wanted[1]} |"
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_rich(table))
    printed = console.export_text()
    for cell in shown:
        assert cell in printed


def test_averages_of_the_table_use_only_shared_sets(prepared: Prepared) -> None:
    suite, sets, out = prepared
    whole = evaluate(BM25System(), suite, sets, out)
    part = evaluate(DenseSystem(WordEncoder()), suite, {"search": sets["search"]}, out)
    report = make_report([whole, part])
    rows = {(row.name, row.metric, row.task): row for row in report.rows}
    assert rows["links", "recall@1", "link_prediction"].scores[1] is None
    overall = rows["average", "main", "all"]
    assert overall.scores == [entry.sets["search"].scores["ndcg@10"] for entry in (whole, part)]
    assert "1 of 5 sets" in report.notes[1]


def test_left_out_records_and_modes_are_noted(tmp_path: Path) -> None:
    fields = write_fields(tmp_path)
    unknown = [{**PAPERS[0], "labels": ["l1", "l9"]}, *PAPERS[1:]]
    write_jsonl(tmp_path / "fields/papers.jsonl", unknown)
    links = write_links(tmp_path).model_copy(update={"mode": "paper"})
    suite = made_suite(fields, links)
    sets = load_sets(suite, tmp_path, skip_bad=True)
    result = evaluate(BM25System(), suite, sets, tmp_path / "out")
    text = to_markdown(score_table(make_report([result])), level=1)
    assert "fields: left out 1: paper has a label that is not in the label file." in text
    assert "links: mode 'paper'." in text


def test_results_that_cannot_be_compared(prepared: Prepared, tmp_path: Path) -> None:
    suite, sets, out = prepared
    evaluate(BM25System(), suite, sets, out)
    with (tmp_path / "data/search/qrels/test.tsv").open("a") as file:
        file.write("q3\td1\t1\n")
    other = load_sets(suite, tmp_path / "data")
    evaluate(DenseSystem(WordEncoder()), suite, other, out)
    with pytest.raises(DataError, match="words on search differs in counts, files"):
        update_table(out)
    renamed = suite.model_copy(update={"name": "other"})
    evaluate(DenseSystem(WordEncoder()), renamed, sets, out, earlier="replace")
    with pytest.raises(DataError, match="use one --out folder per suite"):
        update_table(out)


def test_a_damaged_result(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/result.json").write_text('{"system": "x"}')
    with pytest.raises(DataError, match="not a result of scimult evaluate"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("suite", {}, "suite.name is missing"),
        ("suite", {"name": "own", "benchmarks": 3}, "suite.benchmarks is missing or of another"),
        ("suite", {"name": "own", "benchmarks": {}, "description": 1}, "suite.description is"),
        ("sets", {"own": {"scores": {}}}, "sets.own: Value error, scores lack recall@1"),
        ("provenance", {"git": "abc"}, "provenance.git is missing or of another type"),
        ("provenance", {"hardware": None}, "provenance.hardware is"),
    ],
)
def test_a_damaged_part_of_a_result_is_named(
    tmp_path: Path, key: str, value: dict[str, Any], named: str
) -> None:
    """It was a traceback, in the middle of a report."""
    write_result(tmp_path, "x", {"own": set_result("recall@1", {"recall@1": 0.5})})
    path = tmp_path / "x" / "result.json"
    assert len(load_results(tmp_path)) == 1
    tree = read_json(path)
    changed = {"own": tree["sets"]["own"] | value["own"]} if key == "sets" else value
    path.write_text(json.dumps(tree | {key: changed}))
    with pytest.raises(DataError, match=re.escape(named)) as raised:
        load_results(tmp_path)
    assert f"{path}: not a result of scimult evaluate" in str(raised.value)


def test_a_result_that_another_process_removes_is_left_out(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate_both(prepared)

    def read_after_removal(path: Path) -> Any:
        (prepared[2] / "words/result.json").unlink(missing_ok=True)
        return read_json(path)

    monkeypatch.setattr("scimult.evaluation.results.read_json", read_after_removal)
    assert [result.system for result in load_results(prepared[2])] == ["BM25"]


def test_names_of_systems_are_folders(tmp_path: Path) -> None:
    assert folder_of(tmp_path, "mha_expert-2.1") == tmp_path / "mha_expert-2.1"
    for name in ("../mine", "my model", "", ".hidden", "x" * 256, "é" * 128):
        with pytest.raises(ConfigError, match="not a valid system name"):
            folder_of(tmp_path, name)


HOSTILE = "<script>alert(1)</script> | a `b` *c* [d](e)\n# _f_"


def test_names_of_a_suite_are_text_in_markdown(tmp_path: Path) -> None:
    """Headings, cells and notes: no markup, and no extra cell or line."""
    entry = write_search(tmp_path / "data").model_copy(update={"mode": "beir"})
    suite = Suite(name="<b>", description=HOSTILE, how_to_get="", benchmarks={"a|*b*": entry})
    sets = load_sets(suite, tmp_path / "data")
    evaluate(BM25System(), suite, sets, tmp_path / "out")
    (result,) = load_results(tmp_path / "out")
    lines = to_markdown(score_table(make_report([result])), level=1).splitlines()
    assert lines[0] == (
        r"# Suite \<b\>: \<script\>alert(1)\</script\> \| a \`b\` \*c\* \[d\](e) # \_f\_"
    )
    assert lines[1] == ""
    assert lines[4].startswith(r"| search | a\|\*b\* | ndcg@10 |")
    assert r"* a\|\*b\*: mode 'beir'." in lines
