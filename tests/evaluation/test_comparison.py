"""Comparisons of results on disk: numbers, order, corrections, and refused comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.evaluation.comparison import Comparison, Difference, Settings, compare, save_comparison
from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.reporting.leaderboard import differences
from scimult.evaluation.resampling import holm
from scimult.evaluation.results import SetResult, load_results, save_result
from scimult.files import sha256
from scimult.table import to_markdown
from tests.made_results import set_result, write_result

RNG = np.random.default_rng(0)
QUERIES = [f"q{row}" for row in range(40)]
BASE = RNG.random(40)
SCORES = {
    "base": {"links": BASE, "cisi": BASE[:12], "cacm": BASE * 0.5},
    "same": {"links": BASE, "cisi": BASE[:12], "cacm": BASE * 0.5},
    "good": {"links": BASE + 0.3, "cisi": BASE[:12] + RNG.normal(0.1, 0.2, 12)},
}
GOLD = RNG.choice(["a", "b", "c"], 40).tolist()
PREDICTED = {
    "base": RNG.choice(["a", "b", ""], 40).tolist(),
    "same": GOLD,
    "good": [gold if RNG.random() < 0.7 else "a" for gold in GOLD],
}
TASKS = {"links": "link_prediction", "fields": "classification", "cisi": "search", "cacm": "search"}


def _entry(name: str, metric: str, queries: int, **scores: float) -> SetResult:
    files, counts = {f"{name}.tsv": "0"}, {"queries": queries}
    return set_result(metric, scores, task=TASKS[name], counts=counts, files=files)


def _f1(gold: list[str], predicted: list[str]) -> float:
    classes = sorted({*gold, *predicted} - {""})
    return float(f1_score(gold, predicted, labels=classes, average="macro"))


def _write(out: Path, system: str) -> None:
    """Write one system's result with per-query scores."""
    sets = {}
    for name, scores in SCORES[system].items():
        columns = {"map": scores, "mrr": scores**2}
        write_per_query(
            out, system, name, QUERIES[: len(scores)], {k: v.tolist() for k, v in columns.items()}
        )
        means = {metric: float(column.mean()) for metric, column in columns.items()}
        sets[name] = _entry(name, "map", len(scores), **means)
    predicted = PREDICTED[system]
    write_per_query(out, system, "fields", QUERIES, {"gold": GOLD, "predicted": predicted})
    sets["fields"] = _entry("fields", "macro_f1", 40, macro_f1=_f1(GOLD, predicted))
    write_result(out, system, sets, TASKS, date=system)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for system in SCORES:
        _write(tmp_path, system)
    return tmp_path


def _compare(out: Path, systems: tuple[str, ...] = (), **settings: Any) -> Comparison:
    return compare(out, Settings(baseline="base", **{"resamples": 5000, **settings}), systems)


def _rows(comparison: Comparison) -> dict[tuple[str, str, str], Difference]:
    return {(row.name, row.metric, row.system): row for row in comparison.rows}


def _change(out: Path, system: str, name: str, **changes: Any) -> None:
    """Change a set in a result."""
    result = next(result for result in load_results(out) if result.system == system)
    entry = result.sets[name].model_copy(update=changes)
    save_result(result.model_copy(update={"sets": {**result.sets, name: entry}}), out)


def test_differences_are_those_of_the_results(out: Path) -> None:
    found = _compare(out)
    assert [(row.name, row.system) for row in found.rows] == [
        (name, system)
        for name in TASKS
        for system in ("good", "same")
        if (name, system) != ("cacm", "good")
    ]
    row = _rows(found)["cisi", "map", "good"]
    first, second = SCORES["base"]["cisi"].mean(), SCORES["good"]["cisi"].mean()
    assert (row.baseline_score, row.score, row.queries) == (first, second, 12)
    assert row.difference == second - first
    assert row.relative_change == pytest.approx(second / first - 1, rel=1e-12)


def test_p_values_and_intervals_against_scipy(out: Path) -> None:
    """Both draw 5,000 times: 0.15 standard errors are four of an end's."""
    row = _rows(_compare(out))["cisi", "map", "good"]
    pair = (SCORES["good"]["cisi"], SCORES["base"]["cisi"])
    wanted = stats.permutation_test(
        pair,
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert row.exact
    assert row.p == pytest.approx(wanted.pvalue, abs=1e-12)
    ends = stats.bootstrap(
        (pair[0] - pair[1],), np.mean, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    error = stats.sem(pair[0] - pair[1])
    assert (row.low, row.high) == pytest.approx((ends.low, ends.high), abs=0.15 * error)


def test_p_values_are_corrected_for_the_whole_table(out: Path) -> None:
    for choice, count in (("main", 7), ("all", 12)):
        rows = _compare(out, metric=choice).rows
        assert len(rows) == count
        assert [row.p_holm for row in rows] == holm([row.p or 0.0 for row in rows])


def test_certain_equal_and_macro_f1_differences(out: Path) -> None:
    rows = _rows(_compare(out))
    same = rows["links", "map", "same"]
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    good = rows["links", "map", "good"]
    assert (good.p, good.exact) == (1 / 5001, False)
    assert (good.low, good.high) == pytest.approx((0.3, 0.3), abs=1e-12)
    fields = rows["fields", "macro_f1", "same"]
    assert fields.score == 1
    assert fields.p == 1 / 5001
    assert 0.1 < fields.low < fields.difference < fields.high <= 1


def test_averages_are_over_sets_that_every_system_has(out: Path) -> None:
    found = _compare(out)
    averages = {(row.task, row.system): row for row in found.averages}
    assert {task for task, _ in averages} == {*TASKS.values(), "all"}
    rows = _rows(found)
    keys = [("links", "map", "good"), ("fields", "macro_f1", "good"), ("cisi", "map", "good")]
    wanted = np.mean([rows[key].difference for key in keys])
    overall = averages["all", "good"]
    assert overall.difference == pytest.approx(wanted, abs=1e-12)
    assert overall.low < wanted < overall.high
    # Sets are independent: the variance of a mean of three is their sum over nine.
    widths = [rows[key].high - rows[key].low for key in keys]
    assert overall.high - overall.low == pytest.approx(np.hypot.reduce(widths) / 3, rel=0.1)
    assert averages["search", "good"].score == rows["cisi", "map", "good"].score
    assert "cacm: no result of good." in found.notes


def test_a_row_depends_on_nothing_but_its_systems_and_the_seed(out: Path) -> None:
    everything, alone = _rows(_compare(out)), _rows(_compare(out, ("good",)))
    for key, row in alone.items():
        assert everything[key].model_copy(update={"p_holm": row.p_holm}) == row
    other = _rows(_compare(out, seed=1))["fields", "macro_f1", "good"]
    assert other.low != everything["fields", "macro_f1", "good"].low


def test_a_row_does_not_depend_on_the_other_metrics(out: Path) -> None:
    """Nor on whether these have more queries that differ: then no swaps of theirs are drawn."""
    for system in ("base", "good"):
        scores, others = SCORES[system]["links"].copy(), SCORES[system]["links"] ** 2
        scores[10:] = 0.5
        columns = {"map": scores.tolist(), "mrr": others.tolist()}
        write_per_query(out, system, "links", QUERIES[: len(scores)], columns)
        means = {"map": float(scores.mean()), "mrr": float(others.mean())}
        _change(out, system, "links", scores=means)
    alone, among = (_rows(_compare(out, ("good",), metric=choice)) for choice in ("main", "all"))
    assert alone["links", "map", "good"].exact
    for key, row in alone.items():
        assert (among[key].p, among[key].exact) == (row.p, row.exact)
        # A product's last digit depends on the width of its matrix.
        assert (among[key].low, among[key].high) == pytest.approx((row.low, row.high), abs=1e-12)


def test_queries_may_stand_in_another_order(out: Path) -> None:
    wanted = _compare(out).rows
    ids, scores = QUERIES[11::-1], SCORES["good"]["cisi"][::-1].tolist()
    write_per_query(out, "good", "cisi", ids, {"map": scores})
    assert _rows(_compare(out))["cisi", "map", "good"] == wanted[4]


def test_what_is_written(out: Path) -> None:
    found = _compare(out, confidence=0.9, seed=3)
    path = save_comparison(found, out)
    assert path.name == "compare_base.json"
    written = json.loads(path.read_text())
    assert Comparison.model_validate(written) == found
    assert written["results"]["good"] == sha256(out / "good/result.json")
    assert written["provenance"]["seed"] == 3
    lines = to_markdown(differences(found), level=1).splitlines()
    assert "| 90% interval | p | p (Holm) |" in lines[2]
    line = next(line for line in lines if line.startswith("| links | map | good |"))
    mean = 100 * BASE.mean()
    numbers = [f"{mean:.2f}", f"{mean + 30:.2f}", "+30.00", f"+{3000 / mean:.2f}%"]
    numbers += ["+30.00 to +30.00", "0.0002", "0.0014*"]
    assert line == f"| links | map | good | {' | '.join(f'**{cell}**' for cell in numbers)} |"
    assert any("cisi: only 12 queries, so the interval is too narrow" in line for line in lines)


def test_systems_that_cannot_be_compared(out: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown system.*did you mean 'good'"):
        _compare(out, ("goood",))
    with pytest.raises(ConfigError, match="compared with another system"):
        _compare(out, ("base",))
    _change(out, "good", "links", files={"links.tsv": "1"})
    with pytest.raises(DataError, match="the result of good on links differs in files"):
        _compare(out)


def test_scores_per_query_that_do_not_fit(out: Path) -> None:
    scores = SCORES["good"]["cisi"]
    write_per_query(out, "good", "cisi", [f"x{row}" for row in range(12)], {"map": scores.tolist()})
    with pytest.raises(DataError, match="only one of the systems has scores for 24 queries"):
        _compare(out)
    write_per_query(out, "good", "cisi", QUERIES[:12], {"map": (scores - 1e-6).tolist()})
    with pytest.raises(DataError, match="of good on cisi do not match its result.*again"):
        _compare(out)
    columns = {"map": scores.tolist(), "weight": [1.0] * 12}
    write_per_query(out, "good", "cisi", QUERIES[:12], columns)
    with pytest.raises(DataError, match="only some systems have the weights of the queries"):
        _compare(out)
    (out / "good/per_query/cisi.tsv.gz").unlink()
    with pytest.raises(DataError, match="no per-query scores of good on cisi.*again"):
        _compare(out)
    assert len(load_results(out)) == 3


def test_papers_with_other_gold_labels(out: Path) -> None:
    others = ["a", *GOLD[1:]] if GOLD[0] != "a" else ["b", *GOLD[1:]]
    columns = {"gold": others, "predicted": PREDICTED["good"]}
    write_per_query(out, "good", "fields", QUERIES, columns)
    with pytest.raises(DataError, match="gold labels of base and good on fields differ"):
        _compare(out)


def test_nothing_in_common(out: Path) -> None:
    for result in load_results(out):
        if result.system == "good":
            save_result(result.model_copy(update={"sets": {}}), out)
    with pytest.raises(
        ConfigError, match="base and the other systems share no set with per-query scores"
    ):
        _compare(out, ("good",))


def test_a_metric_without_scores_by_query_is_named_and_not_tested(out: Path) -> None:
    for result in load_results(out):
        if result.system in ("base", "good"):
            tau = _entry("cisi", "kendall_tau", 12, kendall_tau=0.5).model_copy(
                update={"resampled": []}
            )
            save_result(result.model_copy(update={"sets": {**result.sets, "cisi": tau}}), out)
    comparison = _compare(out, ("good",))
    assert {row.name for row in comparison.rows} == {"links", "fields"}
    assert (
        "cisi: not every system has kendall_tau by query, so it cannot be tested."
        in comparison.notes
    )
    assert any("over the 2 of " in note for note in comparison.notes)


def test_too_few_resamples_for_any_star_are_noted(out: Path) -> None:
    """Comparisons of many queries are sampled; the suggested number of resamples then suffices."""
    found = _compare(out, resamples=100)
    drawn = [row for row in found.rows if not row.exact]
    assert drawn
    assert not any(row.p_holm <= 0.05 for row in drawn if row.p_holm is not None)
    (note,) = [note for note in found.notes if note.startswith("Too few resamples")]
    assert f"below {len(found.rows) / 101:.4f}" in note, "no exact p is as small as 1 / 101"
    enough = _compare(out, resamples=int(note.rstrip(".").split()[-1]))
    assert any(
        row.p_holm <= 0.05 for row in enough.rows if row.p_holm is not None and not row.exact
    )
    assert not any(note.startswith("Too few") for note in enough.notes)
