"""Benchmarks beside others: what they say of the lists, and a last line for a program."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from benchmarks.app import app
from benchmarks.compare_search import OURS, OURS_ONE_PASS, recall_of


def test_recall_counts_what_was_found() -> None:
    wanted_QK = np.array([[1, 2], [3, 4]])
    assert recall_of(np.array([[2, 1], [4, 9]]), wanted_QK) == 0.75
    assert recall_of(wanted_QK, wanted_QK) == 1.0


def test_search_beside_faiss_finds_what_float64_finds() -> None:
    options = [
        "--candidates",
        "9000",
        "--candidates",
        "500",
        "--width",
        "64",
        "--k",
        "2",
        "--rounds",
        "1",
    ]
    chosen = ["compare-search", "--queries", "1", "--queries", "300", *options]
    result = CliRunner().invoke(app, chosen)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output.splitlines()[-1])
    sizes = [(row["candidates"], row["queries"]) for row in report["rows"]]
    assert sizes == [(9000, 1), (9000, 300), (500, 1), (500, 300)]
    for row in report["rows"]:
        assert row["recall"] == 1.0
        assert {OURS, OURS_ONE_PASS} <= set(row["seconds"])
