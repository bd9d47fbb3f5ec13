"""Runs that an evaluation saves, scored by ranx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import DenseSystem
from tests.benchmark_sets import HEADER, WordEncoder, benchmark, write_jsonl, write_rows

QUERIES, DOCUMENTS = 25, 80
WORDS = [f"word{number}" for number in range(40)]
METRICS = ["ndcg@10", "ndcg", "map", "mrr", "recall@5", "recall@20", "precision@5"]


def _write_graded(folder: Path, rng: np.random.Generator) -> list[tuple[str, str, int]]:
    """Write a BEIR folder of random words with grades 0 to 3, and return its judgments."""

    def text() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(3, 9)))

    documents = [
        {"_id": f"d{number}", "title": text(), "text": text()} for number in range(DOCUMENTS)
    ]
    write_jsonl(folder / "graded/corpus.jsonl", documents)
    queries = [{"_id": f"q{number}", "text": text()} for number in range(QUERIES)]
    write_jsonl(folder / "graded/queries.jsonl", queries)
    judged = []
    for query in range(QUERIES):
        grades = rng.integers(0, 4, 15)
        grades[0] = 3
        chosen = rng.choice(DOCUMENTS, 15, replace=False)
        judged += [
            (f"q{query}", f"d{document}", int(grade))
            for document, grade in zip(chosen, grades, strict=True)
        ]
    write_rows(folder / "graded/qrels/test.tsv", [HEADER, *judged])
    return judged


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::Warning:ranx")
def test_ranx_scores_saved_runs_as_we_do(tmp_path: Path) -> None:
    """To 1e-12: both add float64. Scores of the run are distinct, for ranx has no rule for ties.

    Slow, because ranx compiles each of its metrics when it is first used.
    """
    ranx = pytest.importorskip("ranx")
    judged = _write_graded(tmp_path, np.random.default_rng(0))
    entry = benchmark("graded", "search", "search", METRICS)
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"graded": entry})
    system = DenseSystem(WordEncoder())
    result = evaluate(system, suite, load_sets(suite, tmp_path), tmp_path / "out", save_runs=True)
    run = ranx.Run.from_file(str(tmp_path / "out/words/runs/graded.run"), kind="trec")
    for scores in run.to_dict().values():
        assert len(set(scores.values())) == len(scores) == DOCUMENTS
    grades: dict[str, dict[str, int]] = {}
    for query, document, grade in judged:
        grades.setdefault(query, {})[document] = grade
    theirs = ranx.evaluate(ranx.Qrels(grades), run, METRICS)
    ours = result.sets["graded"].scores
    for metric in METRICS:
        assert 0 < ours[metric] < 1
        assert ours[metric] == pytest.approx(float(theirs[metric]), rel=0, abs=1e-12), metric
