"""``scimult compare``, as a user calls it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from tests.command import completed, invoke, refused
from tests.evaluation.reporting.scored import write_results


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate two systems on a set of every protocol."""
    return write_results(tmp_path_factory.mktemp("evaluated"), save_runs=False)[0]


@pytest.fixture
def out(evaluated: Path, tmp_path: Path) -> Path:
    return shutil.copytree(evaluated, tmp_path / "out")


def _compare(out: Path, *arguments: str) -> Result:
    return invoke("compare", out, *arguments)


def test_every_protocol_is_compared(out: Path) -> None:
    found = _compare(out, "--baseline", "BM25", "--metric", "all", "--seed", "5")
    assert found.exit_code == 0, found.output
    assert "recall@1+names" in found.stdout
    assert "all of them where few queries differ" in found.stdout
    written = json.loads((out / "compare_BM25.json").read_text())
    assert len(written["rows"]) == 4 + 1 + 3 + 2 + 2
    assert written["settings"]["seed"] == 5
    assert all(row["exact"] for row in written["rows"])
    markdown = (out / "compare_BM25.md").read_text()
    assert len([line for line in markdown.splitlines() if "| words |" in line]) == 12 + 4


def test_the_same_call_gives_the_same_numbers_and_tables_ignore_its_files(out: Path) -> None:
    tables = []
    for _ in range(2):
        assert _compare(out, "--baseline", "words", "--resamples", "200").exit_code == 0
        tables.append((out / "compare_words.md").read_text())
    assert tables[0] == tables[1]


def test_results_without_per_query_scores_name_the_fix(out: Path) -> None:
    shutil.rmtree(out / "words/per_query")
    found = _compare(out, "--baseline", "BM25")
    assert found.exit_code == 1
    assert found.stderr.startswith("error: ")
    assert "no per-query scores of words on fields. Fix: evaluate the system again" in found.stderr
    assert not list(out.glob("compare_*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "BM52"], "unknown system (value: 'BM52')"),
        (["--baseline", "BM25", "--systems", "BM25"], "compared with another system"),
        (["--baseline", "a", "--runs", "a/b=BM25"], "a run's name has a slash (value: 'a/b')"),
    ],
)
def test_mistakes_are_one_line(out: Path, arguments: list[str], message: str) -> None:
    found = _compare(out, *arguments)
    assert found.exit_code == 1
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_folder_without_results(tmp_path: Path) -> None:
    found = _compare(tmp_path, "--baseline", "BM25")
    assert found.exit_code == 1
    assert "no results in this folder" in found.stderr


def test_seeds_of_a_run_are_compared_together(out: Path) -> None:
    call = ["compare", str(out), "--baseline", "BM25", "--runs", "dense=wor*"]
    found = completed(*call)
    assert "Obuchowski and Rockette" in found.stdout
    for ending in ("json", "md", "tex", "csv"):
        assert "dense" in (out / f"runs_BM25.{ending}").read_text(encoding="utf-8")
    for arguments, problem in (
        (["--resamples", "500"], "without draws"),
        (["--runs", "dense=BM25"], "two runs have the same name"),
        (["--runs", "dense"], "NAME=SYSTEM,SYSTEM"),
    ):
        assert problem in refused(*call, *arguments)
