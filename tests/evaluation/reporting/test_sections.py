"""Sections of a report against literal counts on small results."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from scimult.errors import ConfigError, DataError, SciMultError
from scimult.evaluation.comparison import Settings
from scimult.evaluation.per_query import PerQuery
from scimult.evaluation.reporting import maps
from scimult.evaluation.reporting.curves import recall_curves
from scimult.evaluation.reporting.labels import by_frequency, class_f1, rarest_label
from scimult.evaluation.reporting.leaderboard import (
    leaderboard,
    mark_of,
    relative_changes,
    significance,
)
from scimult.evaluation.reporting.maps import Layout, project, takes
from scimult.evaluation.reporting.parts import Options
from scimult.evaluation.reporting.sources import read_scored_set
from scimult.evaluation.reporting.suite_report import make_suite_report
from scimult.evaluation.reporting.wins import pairwise_wins, shortened
from scimult.evaluation.results import load_results
from scimult.retrieval.embeddings import read_embeddings, unit_rows, write_embeddings
from tests.evaluation.reporting.scored import row_of, write_results

Written = tuple[Path, Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_results(tmp_path_factory.mktemp("report"))


def test_won_and_lost_queries_are_those_of_the_scores(written: Written) -> None:
    out, data = written
    for name in ("fields", "coarse", "rerank", "links", "search"):
        scored = read_scored_set(out, load_results(out), name, [data])
        (found,) = pairwise_wins(scored, "BM25", examples=10)
        ours, theirs = (scored.tables[system].column(scored.column) for system in ("words", "BM25"))
        differences = dict(
            zip(
                scored.query_ids,
                [float(a) - float(b) for a, b in zip(ours, theirs, strict=True)],
                strict=True,
            )
        )
        won = [query for query, by in differences.items() if by > 0]
        assert found.wins == len(won)
        assert found.losses == sum(by < 0 for by in differences.values())
        assert found.wins + found.ties + found.losses == len(differences)
        assert {example.query_id for example in found.won} == set(won)
        shown = [differences[example.query_id] for example in found.won]
        assert shown == sorted(shown, reverse=True)


@pytest.mark.parametrize(
    ("metric", "columns", "column", "has_shares"),
    [
        ("macro_f1", ("correct", "gold", "predicted"), "correct", False),
        ("f1", ("f1", "correct", "gold", "predicted"), "correct", False),
        ("macro_f1", ("macro_f1", "gold", "predicted"), "macro_f1", True),
        ("kendall_tau", ("kendall_tau", "gold", "predicted"), "kendall_tau", True),
        ("ndcg@10", ("ndcg@10", "weight"), "ndcg@10", False),
    ],
)
def test_wins_are_by_own_scores_not_by_shares(
    written: Written, metric: str, columns: tuple[str, ...], column: str, has_shares: bool
) -> None:
    out, data = written
    scored = read_scored_set(out, load_results(out), "links", [data])
    table = PerQuery(out, ["p"], {name: ["1"] for name in columns})
    facts = scored.facts.model_copy(update={"main_metric": metric})
    changed = replace(scored, facts=facts, tables={"words": table})
    assert (changed.column, changed.has_shares) == (column, has_shares)


def test_an_example_shows_what_each_system_listed(written: Written) -> None:
    out, data = written
    scored = read_scored_set(out, load_results(out), "search", [data])
    (found,) = pairwise_wins(scored, "BM25", examples=10)
    assert scored.dataset is not None
    titles = {
        text.title or text.body: name
        for name, text in zip(scored.dataset.candidate_ids, scored.dataset.candidates, strict=True)
    }
    for example in [*found.won, *found.lost]:
        row = scored.query_ids.index(example.query_id)
        relevant = set(scored.dataset.qrels.rows[row][scored.dataset.qrels.grades[row] > 0])
        assert example.relevant_count == len(relevant)
        for side in example.sides:
            run = (out / side.system / "runs/search.run").read_text().splitlines()
            listed = [line.split()[2] for line in run if line.split()[0] == example.query_id]
            assert [titles[line.text] for line in side.listed] == listed[:3]
            rows = [scored.dataset.candidate_ids.index(name) for name in listed[:3]]
            assert [line.relevant for line in side.listed] == [row in relevant for row in rows]
    assert found.won or found.lost


def test_an_example_of_one_label_each_shows_whether_it_is_right(written: Written) -> None:
    out, data = written
    scored = read_scored_set(out, load_results(out), "coarse", [data])
    (found,) = pairwise_wins(scored, "BM25", examples=10)
    assert found.won or found.lost
    for won, examples in ((True, found.won), (False, found.lost)):
        for example in examples:
            right = {side.system: [line.relevant for line in side.listed] for side in example.sides}
            assert right == {"words": [won], "BM25": [not won]}


def test_curves_from_lists_are_the_recalls_of_the_results(written: Written) -> None:
    out, data = written
    results = load_results(out)
    found = recall_curves(read_scored_set(out, results, "fields", [data]), results)
    assert found is not None
    assert found.depths == [1, 2]
    for curve, result in zip(found.curves, results, strict=True):
        expected = [result.sets["fields"].scores[f"recall@{k}"] for k in (1, 2)]
        assert curve.recalls == pytest.approx(expected, abs=1e-12)
    without = recall_curves(read_scored_set(out, results, "fields", []), results)
    assert without is not None
    assert [curve.recalls for curve in without.curves] == [
        pytest.approx(curve.recalls, abs=1e-12) for curve in found.curves
    ]


def test_no_curve_without_lists_where_there_is_one_cut_off(written: Written) -> None:
    results = load_results(written[0])
    assert recall_curves(read_scored_set(written[0], results, "search", []), results) is None


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.randoms())
def test_f1_of_a_class_against_scikit_learn(gold: list[str], random: object) -> None:
    """Both divide the same integers: equal to rounding, 1e-12."""
    predicted = list(gold)
    random.shuffle(predicted)  # type: ignore[attr-defined]
    for name in set(gold):
        (expected,) = f1_score(gold, predicted, labels=[name], average=None)
        assert class_f1(np.array(gold), np.array(predicted), name) == pytest.approx(
            expected, abs=1e-12
        )


@given(st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=12))
def test_rarest_labels_by_counting(papers: list[set[int]]) -> None:
    labels = np.array([name for paper in papers for name in sorted(paper)])
    owners = np.array([row for row, paper in enumerate(papers) for _ in paper])
    expected = [min(sum(name in other for other in papers) for name in paper) for paper in papers]
    assert rarest_label(labels, owners).tolist() == expected


def test_every_paper_is_in_one_range_of_frequencies(written: Written) -> None:
    out, data = written
    results = load_results(out)
    scored = read_scored_set(out, results, "fields", [data])
    grid = by_frequency(scored)
    assert grid is not None
    papers = [row[1].value or 0 for row in grid.rows]
    assert sum(papers) == 3
    for column, result in enumerate(results, start=2):
        means = [row[column].value or 0 for row in grid.rows]
        total = sum(n * mean for n, mean in zip(papers, means, strict=True)) / 3
        assert total == pytest.approx(result.sets["fields"].scores["recall@1"], abs=1e-12)
    assert by_frequency(read_scored_set(out, results, "links", [data])) is None


@pytest.mark.parametrize(
    ("difference", "p_holm", "mark"),
    [
        (0.1, 0.04, "better"),
        (-0.1, 0.04, "worse"),
        (-0.1, 0.05, "worse"),
        (0.1, 0.051, ""),
        (0.1, None, ""),
        (0.0, 0.04, ""),
    ],
)
def test_a_mark_is_the_direction_of_what_passes(
    difference: float, p_holm: float | None, mark: str
) -> None:
    assert mark_of(row_of("one", difference, p_holm=p_holm), 0.05) == mark


def test_marks_follow_the_corrected_test(written: Written) -> None:
    """Three queries cannot pass a test."""
    out = written[0]
    results = load_results(out)
    for confidence in (0.95, 0.5):
        tested = significance(out, results, Settings(baseline="BM25", confidence=confidence))
        assert tested.comparison is not None
        rows = {row.name: row for row in tested.comparison.rows}
        for cells in leaderboard(results, tested).rows:
            row = rows.get(cells[1].text)
            if row is None or row.metric != cells[2].text:
                assert cells[4].mark == ""
                continue
            passes = row.p_holm is not None and row.p_holm <= 1 - confidence and row.difference != 0
            assert cells[4].mark == (("worse", "better")[row.difference > 0] if passes else "")
            assert cells[3].mark == "", "the baseline is not compared with itself"


def test_scores_that_an_older_version_cannot_test_are_reported(
    written: Written, tmp_path: Path
) -> None:
    out = shutil.copytree(written[0], tmp_path / "out")
    old = json.loads((out / "words/result.json").read_text())
    old["sets"] = {name: {**entry, "resampled": []} for name, entry in old["sets"].items()}
    (out / "words/result.json").write_text(json.dumps(old))
    tested = significance(out, load_results(out), Settings(baseline="BM25"))
    assert (tested.comparison, tested.intervals) == (None, {})


def test_relative_changes_are_those_of_the_averages(written: Written) -> None:
    out = written[0]
    results = load_results(out)
    tested = significance(out, results, Settings(baseline="BM25"))
    assert tested.comparison is not None
    baseline, system = (result.averages for result in results)
    for task, cell in relative_changes(tested.comparison).rows:
        expected = (system[task.text] - baseline[task.text]) / baseline[task.text]
        assert cell.value == pytest.approx(expected, abs=1e-12)


def test_other_data_than_was_scored_is_refused(tmp_path: Path) -> None:
    out, data = write_results(tmp_path, save_runs=False)
    queries = data / "search/queries.jsonl"
    queries.write_text(queries.read_text().replace("water", "wine"))
    with pytest.raises(DataError, match="differ from those that were scored"):
        read_scored_set(out, load_results(out), "search", [data])


def test_a_damaged_suite_in_a_result_is_named(tmp_path: Path) -> None:
    out, data = write_results(tmp_path, save_runs=False)
    whole = load_results(out)[-1]
    for benchmarks in ({}, {"search": 1}):
        result = whole.model_copy(update={"suite": {**whole.suite, "benchmarks": benchmarks}})
        with pytest.raises(SciMultError, match=r"result\.json: [\s\S]*(search|benchmarks)"):
            read_scored_set(out, [result], "search", [data])


@pytest.mark.parametrize("layout", ["tsne", pytest.param("umap", marks=pytest.mark.slow)])
def test_a_map_keeps_groups_apart(layout: Layout) -> None:
    """Two groups of similar embeddings: every paper's nearest neighbour is in its own group."""
    if layout == "umap":
        pytest.importorskip("umap")
    generator = np.random.default_rng(0)
    centres = np.repeat(np.eye(2, 8, dtype=np.float32), 20, axis=0)
    rows = unit_rows(centres + 0.01 * generator.normal(size=centres.shape).astype(np.float32))
    places = project(rows, 0, layout)
    assert places.min() >= 0
    assert places.max() <= 1
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) + 10 * np.eye(40)
    assert (distances.argmin(axis=1) // 20 == np.arange(40) // 20).all()
    np.testing.assert_array_equal(places, project(rows, 0, layout))


def test_a_layout_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed .*scimult\[umap\]"):
        maps.check_layout("umap")
    maps.check_layout("tsne")


def test_a_map_needs_all_papers_and_enough_of_them(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of fewer than ten stopped the whole report after its tests."""
    out, data = written
    scored = read_scored_set(out, load_results(out), "coarse", [data])
    write_embeddings(tmp_path / "part", ["p1", "p2"], np.eye(2, dtype=np.float32), {})
    assert not takes(scored, read_embeddings(tmp_path / "part"))
    write_embeddings(tmp_path / "all", scored.query_ids, np.eye(4, dtype=np.float32), {})
    stored = read_embeddings(tmp_path / "all")
    options = Options(data=[data], maps={"words": stored}, resamples=100)
    report = make_suite_report(out, options, lambda message: None)
    assert report.maps == []
    why = "words do not cover all papers of a set of at least 10 papers with one field each"
    assert why in next(gap.why for gap in report.missing if gap.section == "Map of papers")
    monkeypatch.setattr(maps, "FEWEST", 4)
    assert takes(scored, stored)


@given(st.text(max_size=60), st.integers(1, 40))
def test_shortened_texts_start_like_the_text(text: str, limit: int) -> None:
    found = shortened(text, limit)
    assert found == text.strip() or (found.endswith(" …") and len(found) <= limit + 2)
    assert text.strip().startswith(found.removesuffix(" …"))
    assert shortened(limit * " " + text, limit) == found


def test_a_text_is_cut_only_if_it_is_too_long() -> None:
    assert [shortened("ab cde", limit) for limit in (6, 5)] == ["ab cde", "ab …"]
