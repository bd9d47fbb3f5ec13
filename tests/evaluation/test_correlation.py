"""Correlations between data sets against their definitions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.evaluation.correlation import METHODS, Correlation, correlate, matrix
from tests.command import completed
from tests.made_results import set_result, write_result

LEVELS = st.integers(0, 4).map(lambda value: value / 4)
SCORES = {"a": [0.1, 0.2, 0.4], "b": [0.2, 0.3, 0.1], "c": [0.3, 0.5, 0.4], "d": [0.4, 0.4, 0.4]}


def _pearson(first: list[float], second: list[float]) -> float:
    x, y = np.array(first) - np.mean(first), np.array(second) - np.mean(second)
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def _ranks(values: list[float]) -> list[float]:
    """Return mean ranks of ties."""
    return [sum(other < value for other in values) + values.count(value) / 2 for value in values]


def _kendall(first: list[float], second: list[float]) -> float:
    """Return tau-b: concordant minus discordant pairs, over the untied pairs."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    x = [np.sign(first[i] - first[j]) for i, j in pairs]
    y = [np.sign(second[i] - second[j]) for i, j in pairs]
    return _cosine(x, y)


def _cosine(x: list[float], y: list[float]) -> float:
    return float(np.dot(x, y) / np.sqrt(np.dot(x, x) * np.dot(y, y)))


@settings(max_examples=30)
@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=3, max_size=12))
def test_against_definitions_with_ties(rows: list[tuple[float, float]]) -> None:
    """Scores are multiples of 1/4, so rounding is far below the tolerance."""
    first, second = (list(column) for column in zip(*rows, strict=True))
    constant = len(set(first)) == 1 or len(set(second)) == 1
    for method, wanted in (
        ("pearson", lambda: _pearson(first, second)),
        ("spearman", lambda: _pearson(_ranks(first), _ranks(second))),
        ("kendall", lambda: _kendall(first, second)),
    ):
        found = matrix(np.array(rows), method)  # type: ignore[arg-type]
        assert found[0][1] == found[1][0]
        assert found[0][1] == (None if constant else pytest.approx(wanted(), abs=1e-9))


def test_means_of_the_same_scores_in_another_order_are_ties() -> None:
    """They differ in the last bit: four equal systems are no order, and five have one outlier."""
    shuffled = [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.2, 0.1, 0.3), (0.3, 0.1, 0.2)]
    means = [float(np.mean(scores)) for scores in shuffled]
    assert len(set(means)) > 1
    for method in METHODS:
        assert matrix(np.column_stack([means, [0.1, 0.2, 0.3, 0.4]]), method)[0] == [None, None]
        several, exact = (
            matrix(np.column_stack([[*scores, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5]]), method)[0][1]
            for scores in (means, [0.2] * 4)
        )
        assert several == exact


def _write(out: Path, systems: dict[str, list[float]], names: str = "xyz") -> None:
    for system, scores in systems.items():
        sets = {
            name: set_result("map", {"mrr": 1.0, "map": score})
            for name, score in zip(names, scores, strict=False)
        }
        write_result(out, system, sets, names)


def test_the_verb_writes_every_method(tmp_path: Path) -> None:
    _write(tmp_path, SCORES)
    found = completed("correlate", tmp_path, "--method", "kendall")
    assert "kendall correlation between data sets" in " ".join(found.stdout.split())
    written = Correlation.model_validate(json.loads((tmp_path / "correlation.json").read_text()))
    columns = list(zip(*SCORES.values(), strict=True))
    wanted = _pearson(list(columns[0]), list(columns[1]))
    assert written.matrices["pearson"][0][1] == pytest.approx(wanted, abs=1e-12)
    assert written.sets == ["x", "y", "z"]
    markdown = (tmp_path / "correlation.md").read_text()
    assert f"| x | 1.00 | {wanted:.2f} |" in markdown
    assert markdown.count("| set | x | y | z |") == 3


def test_a_constant_set_and_one_that_a_system_lacks(tmp_path: Path) -> None:
    _write(tmp_path, {"a": [0.1, 0.5, 0.3], "b": [0.2, 0.5, 0.3], "c": [0.3, 0.5]})
    found = correlate(tmp_path)
    assert found.sets == ["x", "y"]
    assert found.matrices["spearman"] == [[1.0, None], [None, None]]
    assert "Not every system has z." in found.notes


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        ({"a": [0.1, 0.2], "b": [0.2, 0.3]}, "correlations need 3 systems"),
        ({"a": [0.1], "b": [0.2], "c": [0.3, 0.1]}, "need two data sets that every system has"),
    ],
)
def test_too_little(tmp_path: Path, systems: dict[str, list[float]], message: str) -> None:
    _write(tmp_path, systems)
    with pytest.raises(DataError, match=message):
        correlate(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nope: folder does not exist. Fix: check the path"):
        correlate(tmp_path / "nope")
