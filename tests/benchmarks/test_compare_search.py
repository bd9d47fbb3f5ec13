"""Comparisons with other libraries: recall, and a machine-readable last line."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from benchmarks.app import app
from benchmarks.compare_search import OURS, OURS_ONE_PASS, recall_of


def test_recall_counts_what_was_found() -> None:
    expected_QK = np.array([[1, 2], [3, 4]])
    assert recall_of(np.array([[2, 1], [4, 9]]), expected_QK) == 0.75
    assert recall_of(expected_QK, expected_QK) == 1.0


def test_search_against_faiss_finds_the_same_as_float64() -> None:
    sizes = "--queries 1 --queries 300 --candidates 9000 --candidates 500 --width 64"
    command = ["compare-search", *sizes.split(), "--k", "2", "--rounds", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output.splitlines()[-1])
    sizes = [(row["candidates"], row["queries"]) for row in report["rows"]]
    assert sizes == [(9000, 1), (9000, 300), (500, 1), (500, 300)]
    for row in report["rows"]:
        assert row["recall"] == 1.0
        assert {OURS, OURS_ONE_PASS} <= set(row["seconds"])
