"""Charts, maps, examples and label frequencies of a report against values by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import f1_score

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.evaluation.per_query import PerQuery, read_per_query
from scimult.evaluation.reporting import charts, maps
from scimult.evaluation.reporting.charts import dots, line_chart
from scimult.evaluation.reporting.curves import Curve, RecallCurves, recall_curves
from scimult.evaluation.reporting.labels import by_frequency
from scimult.evaluation.reporting.maps import PaperMap, Point, paper_map
from scimult.evaluation.reporting.parts import Options
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.reporting.suite_report import make_suite_report
from scimult.evaluation.reporting.wins import pairwise_wins
from scimult.evaluation.results import SetFacts
from scimult.evaluation.task_data import Dataset
from scimult.retrieval.embeddings import StoredEmbeddings, read_embeddings, write_embeddings
from scimult.retrieval.runs import Qrels, Ranking
from scimult.types import Text
from tests.benchmark_sets import write_coarse, write_links
from tests.evaluation.reporting.scored import score_all


def _scored(columns: dict[str, list[str]], protocol: str, dataset: Dataset | None) -> ScoredSet:
    count = len(next(iter(columns.values())))
    facts = SetFacts(
        task="classification",
        protocol=protocol,
        mode="paper",
        main_metric="recall@1",
        counts={},
        left_out={},
        files={},
    )
    table = PerQuery(Path(), [f"p{row}" for row in range(count)], columns)
    return ScoredSet("fields", facts, {"words": table}, dataset)


def _of_fields(gold: Sequence[str], predicted: Sequence[str] | None = None) -> ScoredSet:
    predicted = predicted or gold
    correct = [str(int(a == b)) for a, b in zip(gold, predicted, strict=True)]
    columns = {"correct": correct, "gold": list(gold), "predicted": list(predicted)}
    return _scored(columns, "classification_coarse", None)


def test_a_line_chart_has_its_corners_where_its_axes_end() -> None:
    curves = [Curve("b", [0.0, 0.25, 1.0]), Curve("a", [1.0, 1.0, 1.0])]
    chart = line_chart(RecallCurves("links", [1, 10, 100], curves, "ranked lists"), ["a", "b"])
    right, bottom = charts.WIDTH - charts.RIGHT, charts.HEIGHT - charts.BOTTOM
    # Equal factors of k are equal steps.
    steps = [charts.LEFT, (charts.LEFT + right) / 2, right]
    quarter = bottom - (bottom - charts.TOP) / 4
    first, second = chart.lines
    assert [point[:2] for point in first.points] == list(
        zip(steps, [bottom, pytest.approx(quarter, abs=0.05), charts.TOP], strict=True)
    )
    assert [point[1] for point in second.points] == [charts.TOP] * 3
    assert [(line.index, line.system) for line in chart.lines] == [(1, "b"), (0, "a")]
    assert first.points[1][2] == "b: recall@10 25.00"
    assert [(tick.position, tick.text) for tick in chart.x_ticks] == list(
        zip(steps, ["1", "10", "100"], strict=True)
    )
    assert [tick.text for tick in chart.y_ticks] == ["0", "25", "50", "75", "100"]
    heights = np.linspace(bottom, charts.TOP, 5)
    np.testing.assert_allclose([tick.position for tick in chart.y_ticks], heights, atol=0.05)
    assert re.fullmatch(r"[\d.]+,[\d.]+( [\d.]+,[\d.]+){2}", first.path)


def _results(*metrics: str) -> Any:
    scores = SimpleNamespace(scores=dict.fromkeys(metrics, 0.0))
    return [SimpleNamespace(system="words", sets={"fields": scores})]


def test_recall_of_lists_is_that_of_trec_eval_up_to_the_cut_of_the_suite() -> None:
    """Also where lists are longer: those of other systems may end there."""
    rng = np.random.default_rng(0)
    relevant = [rng.choice(30, size=size, replace=False).tolist() for size in (1, 3, 5, 30)]
    lists_QK = np.stack([rng.permutation(30)[:25] for _ in relevant])
    scores_QK = np.tile(-np.arange(25, dtype=np.float32), (4, 1))
    runs = {"words": Ranking(lists_QK, scores_QK)}
    scored = replace(_labelled(relevant, hits=[0] * 4), runs=runs)
    qrels = {f"q{n}": {f"d{row}": 1 for row in rows} for n, rows in enumerate(relevant)}
    run = {
        f"q{n}": {f"d{row}": -float(k) for k, row in enumerate(rows)}
        for n, rows in enumerate(lists_QK)
    }
    found = pytrec_eval.RelevanceEvaluator(qrels, {"recall.1,2,5,10,20"}).evaluate(run)
    for metrics, cut in ((("recall@5", "recall@20", "recall@10+names"), 20), (("recall@10",), 10)):
        curves = recall_curves(scored, _results(*metrics))
        assert curves is not None
        assert curves.source == "ranked lists"
        assert curves.depths == [k for k in (1, 2, 5, 10, 20) if k <= cut]
        means = [np.mean([one[f"recall_{k}"] for one in found.values()]) for k in curves.depths]
        assert curves.curves[0].recalls == pytest.approx(means, abs=1e-12)
    # A paper with one label has no list to recall from.
    assert recall_curves(scored, _results("macro_f1", "accuracy")) is None


def test_papers_at_the_ends_of_a_map_are_a_margin_inside_the_picture() -> None:
    points = [Point(0, 0, 0, "a"), Point(1, 1, 0, "b"), Point(0.5, 0, 0, "c")]
    placed = dots(PaperMap("words", "fields", ["f"], points, ""))
    low, high = charts.MARGIN, charts.WIDTH - charts.MARGIN
    middle = charts.WIDTH / 2
    assert [(p.x, p.y) for p in placed] == [(low, low), (high, high), (middle, low)]
    assert [p.title for p in placed] == ["a", "b", "c"]


@pytest.fixture
def first_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace t-SNE by the first two of the coordinates."""
    monkeypatch.setitem(maps._LAYOUTS, "tsne", lambda unit_ND, seed: unit_ND[:, :2])


def _stored(folder: Path, rows_ND: np.ndarray) -> StoredEmbeddings:
    ids = [f"p{row}" for row in range(len(rows_ND))]
    write_embeddings(folder, ids, rows_ND.astype(np.float32), {})
    return read_embeddings(folder)


@pytest.mark.usefixtures("first_two")
def test_a_map_places_each_paper_by_its_own_embedding(tmp_path: Path) -> None:
    """Directions count, not lengths; the outermost papers are at 0 and 1."""
    angles = np.linspace(0, np.pi / 2, 10)
    lengths = np.arange(1, 11)[:, None]
    rows_ND = lengths * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    made = paper_map(_of_fields("abababaabb"), "words", _stored(tmp_path / "e", rows_ND), seed=0)
    found = [(point.x, point.y) for point in made.points]
    np.testing.assert_allclose(found, rows_ND / lengths, atol=1e-4)
    assert [point.title for point in made.points] == [f"p{row}" for row in range(10)]
    assert made.note == "10 of 10 papers, t-SNE of cosine distances, seed 0."


@pytest.mark.usefixtures("first_two")
def test_a_large_map_is_of_a_sample_without_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "MOST_PAPERS", 12)
    stored = _stored(tmp_path / "e", np.eye(30))
    scored = _of_fields(["f"] * 30)
    shown = [[p.title for p in paper_map(scored, "words", stored, seed).points] for seed in (0, 1)]
    assert [len(set(titles)) for titles in shown] == [12, 12]
    assert shown[0] != shown[1]
    assert paper_map(scored, "words", stored, 0).note.startswith("12 of 30 papers")


@pytest.mark.usefixtures("first_two")
def test_the_fields_of_a_map_are_the_most_frequent(tmp_path: Path) -> None:
    """Nine fields: the rarest is among the others; of equally frequent ones, by name."""
    gold = [
        name
        for name, count in zip("zbacdefgh", (5, 3, 3, 3, 3, 3, 3, 3, 2), strict=True)
        for _ in range(count)
    ]
    made = paper_map(_of_fields(gold), "words", _stored(tmp_path / "e", np.eye(len(gold))), seed=0)
    assert made.fields == [*"zabcdefg", "other fields"]
    shown = [made.fields[point.field] for point in made.points]
    assert shown == ["other fields" if name == "h" else name for name in gold]
    all_shown = [name for name in gold if name != "h"]
    stored = _stored(tmp_path / "f", np.eye(len(all_shown)))
    assert paper_map(_of_fields(all_shown), "words", stored, seed=0).fields == [*"zabcdefg"]


def test_a_map_of_embeddings_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    rows_ND = np.eye(10)
    rows_ND[3, 3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        paper_map(_of_fields(["f"] * 10), "words", _stored(tmp_path / "e", rows_ND), seed=0)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_embeddings_of_one_direction_have_no_map(tmp_path: Path, value: float) -> None:
    """Those of a collapsed model ended the process: t-SNE crashed."""
    stored = _stored(tmp_path / "e", np.full((12, 4), value))
    with pytest.raises(DataError, match=r"/e: all embeddings have the same direction.*Fix: check"):
        paper_map(_of_fields(["f"] * 12), "words", stored, seed=0)


def test_a_report_maps_the_set_whose_papers_have_embeddings_and_one_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "FEWEST", 4)
    monkeypatch.setitem(maps._LAYOUTS, "tsne", lambda unit_ND, seed: unit_ND[:, :2])
    out = score_all(tmp_path, [write(tmp_path / "data") for write in (write_coarse, write_links)])
    papers = read_per_query(out, "words", "coarse").query_ids
    write_embeddings(tmp_path / "all", papers, np.eye(len(papers), dtype=np.float32), {})
    write_embeddings(tmp_path / "few", papers[1:], np.eye(len(papers) - 1, dtype=np.float32), {})
    every, few = (read_embeddings(tmp_path / name) for name in ("all", "few"))
    given = {"words": every, "BM25": few, "elsewhere": every}
    options = Options(data=[tmp_path / "data"], maps=given, resamples=100)
    report = make_suite_report(out, options, lambda message: None)
    assert [(one.system, one.name, len(one.points)) for one in report.maps] == [
        ("words", "coarse", len(papers))
    ]
    assert [gap.why for gap in report.missing if gap.section == "Map of papers"] == [
        "the embeddings of BM25 do not cover all papers of a set of at least 10 papers with one "
        "field each"
    ]
    # With texts, titles stand for ids.
    titles = {point.title for point in report.maps[0].points}
    assert titles.isdisjoint(papers)
    assert "drawing a graph" in titles


def test_classes_are_listed_by_their_number_of_papers() -> None:
    gold, predicted = list("bbbbaac"), list("bbbaaca")
    table = by_frequency(_of_fields(gold, predicted))
    assert table is not None
    assert table.headings == ["class", "papers", "words"]
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [
        ["b", "4"], ["a", "2"], ["c", "1"],
    ]  # fmt: skip
    scores = f1_score(gold, predicted, labels=["b", "a", "c"], average=None)
    np.testing.assert_allclose([row[2].value for row in table.rows], scores, atol=1e-12)


def _labelled(papers: Sequence[Sequence[int]], hits: Sequence[float]) -> ScoredSet:
    rows = Ragged.from_lists(papers)
    ids = [f"p{row}" for row in range(len(papers))]
    names = [f"l{row}" for row in range(1 + max(map(max, papers)))]
    grades = Ragged(np.ones_like(rows.values), rows.offsets)
    qrels = Qrels(rows, grades, len(names))
    texts = [Text("", "")]
    dataset = Dataset(
        "fields",
        "classification",
        query_ids=ids,
        queries=texts * len(ids),
        candidate_ids=names,
        candidates=texts * len(names),
        qrels=qrels,
    )
    return _scored({"recall@1": list(map(str, hits))}, "classification_fine", dataset)


def test_papers_are_grouped_by_how_many_have_their_rarest_label() -> None:
    """Label 0: 7 papers, 1: 3, 2: 2, 3: 1."""
    papers = [[0], [0], [0], [0, 1], [0, 1], [0, 1, 2], [0, 2, 3]]
    table = by_frequency(_labelled(papers, hits=[1, 0, 0, 1, 1, 0, 1]))
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["1", "1", "100.00"],  # the paper with label 3
        ["2 to 3", "3", "66.67"],  # those with label 2 or 1
        ["4 to 7", "3", "33.33"],
    ]
    assert "a label that no other paper has" in table.notes[0]
    common = by_frequency(_labelled([[0]] * 300, hits=[1] * 300))
    assert common is not None
    assert [cell.text for cell in common.rows[0]] == ["256 and more", "300", "100.00"]
    assert "no other paper" not in common.notes[0]


def test_the_examples_are_the_queries_that_differ_most() -> None:
    ours, theirs = [0.6, 1.0, 0.9, 0.1, 0.5, 0.5], [0.5, 0.5, 0.5, 0.3, 0.9, 0.5]
    scored = _labelled([[0]] * 6, ours)
    tables = {"BM25": _labelled([[0]] * 6, theirs).tables["words"], **scored.tables}
    (found,) = pairwise_wins(replace(scored, tables=tables), "BM25", examples=2)
    assert (found.wins, found.ties, found.losses) == (3, 1, 2)
    assert [example.query_id for example in found.won] == ["p1", "p2"]
    assert [example.query_id for example in found.lost] == ["p4", "p3"]
    assert [(side.system, side.score) for side in found.won[0].sides] == [
        ("BM25", 0.5),
        ("words", 1.0),
    ]
    (counted,) = pairwise_wins(replace(scored, tables=tables), "BM25", examples=0)
    assert (counted.won, counted.lost, counted.losses) == ([], [], 2)
