"""Queries with nothing relevant, against trec_eval's own averages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.report import make_report, score_table
from scimult.evaluation.results import Result
from scimult.evaluation.suites import Suite, load_suite, suite_names
from scimult.evaluation.systems import DenseSystem
from scimult.table import to_markdown
from tests.benchmark_sets import HEADER, WordEncoder, benchmark, write_jsonl, write_rows

MEASURES = {"ndcg": "ndcg", "ndcg@10": "ndcg_cut_10", "map": "map", "mrr": "recip_rank"}
QUERIES, EMPTY, UNJUDGED = 40, 4, 3
Grades = dict[str, dict[str, int]]


def _write(folder: Path) -> Grades:
    """Write a set in BEIR layout; 4 of its 40 queries have only grades of 0 and -1."""
    draw = np.random.default_rng(3)
    names = [f"w{place}" for place in range(30)]
    text = [" ".join(draw.choice(names, 8)) for _ in range(60 + QUERIES + UNJUDGED)]
    write_jsonl(folder / "corpus.jsonl", [{"_id": f"d{i}", "text": text[i]} for i in range(60)])
    queries = [{"_id": f"q{i}", "text": text[60 + i]} for i in range(QUERIES + UNJUDGED)]
    write_jsonl(folder / "queries.jsonl", queries)
    grades: Grades = {}
    for query in range(QUERIES):
        highest = 0 if query < EMPTY else 2
        judged = draw.choice(60, 12, replace=False).tolist()
        grades[f"q{query}"] = {f"d{i}": int(draw.integers(-1, highest + 1)) for i in judged}
        if query >= EMPTY:
            grades[f"q{query}"][f"d{judged[0]}"] = 2
    rows = [(q, d, grade) for q, judged in grades.items() for d, grade in judged.items()]
    write_rows(folder / "qrels/test.tsv", [HEADER, *rows])
    write_rows(folder / "candidates.tsv", [HEADER, *rows])
    return grades


def _evaluate(root: Path, entry: Benchmark, *, skip_bad: bool = False) -> Result:
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"set": entry})
    sets = load_sets(suite, root, skip_bad=skip_bad)
    return evaluate(DenseSystem(WordEncoder()), suite, sets, root / "out", save_runs=True)


def _trec_eval(root: Path, grades: Grades, measure: str) -> dict[str, float]:
    run: dict[str, dict[str, float]] = {}
    for line in (root / "out/words/runs/set.run").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        run.setdefault(query, {})[document] = float(score)
    scores = pytrec_eval.RelevanceEvaluator(grades, {measure.replace("cut_", "cut.")}).evaluate(run)
    return {query: entry[measure] for query, entry in scores.items()}


@pytest.mark.parametrize("protocol", ["search", "rerank"])
def test_means_are_those_of_trec_eval_run_on_the_same_lists(tmp_path: Path, protocol: str) -> None:
    grades = _write(tmp_path / "set")
    entry = benchmark("set", "search", protocol, list(MEASURES))
    counted = entry.model_copy(update={"nothing_relevant": "zero"})
    result = _evaluate(tmp_path, counted)
    for metric, measure in MEASURES.items():
        peer = _trec_eval(tmp_path, grades, measure)
        assert len(peer) == QUERIES
        found = result.sets["set"].scores[metric]
        assert found == pytest.approx(np.mean(list(peer.values())), abs=1e-12), metric
    assert result.sets["set"].counts["queries"] == QUERIES
    assert sorted(result.sets["set"].remarks.values()) == [UNJUDGED, EMPTY]
    table = to_markdown(score_table(make_report([result])), level=1)
    assert "set: 4 times: nothing is relevant to the query, which counts as 0." in table
    assert "set: 3 times: query has no judgment and is not asked." in table

    skipped = _evaluate(tmp_path, entry, skip_bad=True).sets["set"]
    peer = _trec_eval(tmp_path, grades, "map")
    assert skipped.scores["map"] == pytest.approx(sum(peer.values()) / (QUERIES - EMPTY), abs=1e-12)
    assert any("raises the mean" in reason for reason in skipped.left_out)


def test_without_the_key_such_a_query_ends_the_work(tmp_path: Path) -> None:
    _write(tmp_path / "set")
    entry = benchmark("set", "search", "rerank", ["map"])
    with pytest.raises(DataError, match="nothing is relevant to the query .* nothing_relevant: z"):
        _evaluate(tmp_path, entry)


def test_judgments_without_anything_relevant_are_no_test(tmp_path: Path) -> None:
    _write(tmp_path / "set")
    write_rows(tmp_path / "set/qrels/test.tsv", [HEADER, ("q1", "d1", 0)])
    entry = benchmark("set", "search", "search", ["map"])
    with pytest.raises(DataError, match="no query has anything relevant"):
        _evaluate(tmp_path, entry.model_copy(update={"nothing_relevant": "zero"}))


def test_suites_follow_the_peer_that_they_are_named_after(tmp_path: Path) -> None:
    """A benchmark's own key overrides the suite's; a BEIR folder is scored as BEIR does."""
    zero = {name for name in suite_names() if load_suite(name).nothing_relevant == "zero"}
    assert zero >= {"beir", "scirepeval", "scidocs", "scimult"}
    own = load_suite("beir", ["benchmarks.scifact.nothing_relevant=error"])
    assert own.benchmarks["scifact"].nothing_relevant == "error"
    assert own.benchmarks["nfcorpus"].nothing_relevant == "zero"
    _write(tmp_path / "set")
    assert load_suite(str(tmp_path / "set")).benchmarks["set"].nothing_relevant == "zero"
