"""``scimult evaluate --audit``: overlap with training data is reported next to scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from scimult.cli.audit import _audited
from scimult.cli.main import app
from scimult.config import validate
from scimult.evaluation.results import load_result
from scimult.evaluation.task_data import PaperSet, Signatures
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.types import Text
from tests.benchmark_sets import CORPUS, write_coarse, write_links, write_search
from tests.command import completed
from tests.raw_corpus import write_jsonl, write_tsv


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write three sets, a suite of them, and training data with two of their papers as a pair."""
    made = [write(tmp_path / "data") for write in (write_links, write_search, write_coarse)]
    benchmarks = {entry.folder: entry.model_dump(mode="json") for entry in made}
    tree = {"name": "own", "description": "Mine", "how_to_get": "ask me", "benchmarks": benchmarks}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    papers = [
        {"id": "t1", "title": "Drawing LARGE graphs", "abstract": "Layouts of graphs."},
        {"id": "d4", "title": CORPUS[3]["text"], "abstract": ""},
        {"id": "t3", "title": "Nothing like the others", "abstract": ""},
    ]
    write_jsonl(tmp_path / "raw/papers.jsonl", papers)
    write_tsv(tmp_path / "raw/cites.tsv", ("citing", "cited"), [("d4", "t1"), ("t3", "t1")])
    source = {"name": "raw", "papers": "papers.jsonl", "citations": "cites.tsv"}
    config = {"root": str(tmp_path / "raw"), "sources": [source], "dev_fraction": 0.0}
    build_dataset(validate(DatasetConfig, config), tmp_path / "prepared")
    return path


def _evaluate(own: Path, *arguments: str) -> Result:
    options = ["--suite", str(own), "--data", str(own.parent / "data")]
    wide = {"COLUMNS": "240"}
    return CliRunner().invoke(app, ["evaluate", *options, *arguments], env=wide)


def test_the_audit_is_in_table_report_and_json(own: Path) -> None:
    out, prepared = own.parent / "out", own.parent / "prepared"
    done = _evaluate(own, "--bm25", "--out", str(out), "--audit", str(prepared))
    assert done.exit_code == 0, done.output
    assert "Evaluation sets in training data" in done.stdout
    table = (out / "table.md").read_text("utf-8")
    assert "Evaluation sets in training data" in table
    (links,) = [line for line in table.splitlines() if line.startswith("| links | prepared ")]
    cells = [cell.strip() for cell in links.split("|")[3:-1]]
    # Every candidate is an answer; one id each of a query and an answer is a training id.
    assert cells == ["2 of 3", "1 of 5", "–", "1 of 5", "2"]
    found = load_result(out / "BM25/result.json").sets["links"].contamination
    assert found is not None
    assert found.folder == "prepared"
    # Two queries, d1 and d4; one is the other's answer.
    assert (found.texts["query"], found.found["query"]) == (3, 2)
    assert (found.pairs, found.pairs_found) == (5, 1)
    assert found.ways == {"title": 1, "text": 2}
    assert found.ids == {"query": 1, "answer": 1, "candidate": 0}
    search = load_result(out / "BM25/result.json").sets["search"].contamination
    assert search is not None
    assert (search.texts["answer"], search.pairs) == (4, 4)  # a grade of 0 makes no answer
    completed("report", out, "--out", own.parent / "page")
    for name in ("report.html", "report.md", "report.tex", "report.json"):
        assert "Evaluation sets in training data" in (own.parent / "page" / name).read_text("utf-8")


def test_scored_papers_are_audited_as_queries_and_those_of_the_training_as_candidates() -> None:
    ids, rows = ["a", "b", "c"], np.arange(3)
    texts = [Text("paper", name) for name in ids]
    papers = PaperSet("set", "search", ids, texts, rows[:2], rows[2:], [["x"]] * 3, rows * 1.0)
    audited = _audited(papers)
    assert (list(audited.query_ids), list(audited.candidate_ids)) == (["c"], ["a", "b"])
    assert (list(audited.queries), list(audited.candidates)) == (texts[2:], texts[:2])
    mentions = Signatures(
        "set", "search", ["s1", "s2"], ids, texts, rows[:2], ["block"] * 2, ["one", "two"]
    )
    assert (list(_audited(mentions).query_ids), _audited(mentions).candidates) == (ids, [])


def test_an_audit_is_added_to_earlier_scores(own: Path) -> None:
    out = own.parent / "out"
    assert _evaluate(own, "--bm25", "--out", str(out)).exit_code == 0
    before = load_result(out / "BM25/result.json")
    assert all(entry.contamination is None for entry in before.sets.values())
    audit = ("--audit", str(own.parent / "prepared"))
    done = _evaluate(own, "--bm25", "--out", str(out), "--resume", *audit)
    assert done.exit_code == 0, done.output
    assert "earlier score kept" in done.output
    after = load_result(out / "BM25/result.json")
    assert all(entry.contamination is not None for entry in after.sets.values())
    assert {name: entry.seconds for name, entry in after.sets.items()} == {
        name: entry.seconds for name, entry in before.sets.items()
    }


def test_an_audit_with_any_system_scores_it(own: Path) -> None:
    out = own.parent / "out"
    audit = ("--audit", str(own.parent / "prepared"), "--out", str(out))
    assert _evaluate(own, "--lexical", "beir=beir", *audit).exit_code == 0
    assert load_result(out / "beir/result.json").sets["links"].contamination is not None


def test_an_audit_alone_scores_nothing(own: Path) -> None:
    done = _evaluate(own, "--audit", str(own.parent / "prepared"))
    assert done.exit_code == 0, done.output
    for name in ("links", "search", "coarse"):
        assert name in done.stdout
    assert not (own.parent / "out").exists()
    # A folder for results asks for scores.
    audit = ("--audit", str(own.parent / "prepared"), "--out", str(own.parent / "out"))
    assert "nothing to evaluate" in _evaluate(own, *audit).stderr
    wrong = _evaluate(own, "--audit", str(own.parent / "data"))
    assert wrong.exit_code == 1
    assert "error:" in wrong.output
    assert json.loads((own.parent / "prepared/manifest.json").read_text("utf-8"))
