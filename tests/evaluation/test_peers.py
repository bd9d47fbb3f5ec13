"""The peers' own definitions, written out, and numbers that their own programs printed.

Rows are those of a comparison with public code of the peers. Where each is compared:

=====================  =====================================================================
peer                   here, or in
=====================  =====================================================================
SciRepEval ranking     trec_eval (``test_metrics``), ``formats/test_scirepeval``; below
SciRepEval, reviewers  ``formats/test_scirepeval``
SciRepEval, classes    below, with numbers of sklearn-contrib-lightning; ``test_probes``
SciRepEval, numbers    ``test_probes``, with weights of sklearn-contrib-lightning
nothing relevant       ``test_nothing_relevant``, with trec_eval
SciDocs ranking        below
SciDocs clicks, MDCR   ``formats/test_other_layouts``
SciMult's scripts      ``test_protocols``, ``test_name_matching``; coarse: scikit-learn
BEIR                   below; ``test_protocols``, ``test_ranx``
S2AND                  ``test_clustering``
MTEB                   ``test_mteb_suite``, with MTEB itself
CSFCube, DORIS-MAE     ``test_metrics``, ``formats/test_science_sets``
=====================  =====================================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from scimult.data.records import Rejects
from scimult.evaluation.benchmark import Benchmark, FewShot, Probe
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.probes import classification_linear
from scimult.evaluation.protocols import Outcome
from scimult.evaluation.rankings import rerank, search
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.types import FloatArray, Role, Text
from tests.benchmark_sets import HEADER, benchmark, write_jsonl, write_rows

Grades = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]
WIDTH = 8


class Given:
    """An encoder that seeds random vectors with its texts."""

    name = "given"
    similarity = "dot"

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Return one vector per text, shape ``(N, D)``."""
        return np.stack([_vector(text.title or text.body) for text in texts])


def _vector(text: str) -> FloatArray:
    seed = int(text.removeprefix("text "))
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


def _means(grades: Grades, run: Run, measures: dict[str, str]) -> dict[str, float]:
    """Return trec_eval's means over the given queries."""
    evaluator = pytrec_eval.RelevanceEvaluator(grades, set(measures.values()))
    found = evaluator.evaluate(run)
    names = {
        ours: theirs.replace("cut.", "cut_").replace(".", "_") for ours, theirs in measures.items()
    }
    return {
        ours: float(np.mean([scores[name] for scores in found.values()]))
        for ours, name in names.items()
    }


def _scored(entry: Benchmark, root: Path) -> Outcome:
    data = read_dataset("set", entry, root, "", Rejects())
    assert isinstance(data, Dataset)
    protocol = {"rerank": rerank, "search": search}[entry.protocol]
    return protocol(entry, data, DenseSystem(Given()).ranker(data))


def _benchmark(protocol: str, metrics: list[str], **options: Any) -> Benchmark:
    return benchmark("set", "link_prediction", protocol, metrics, **options)


@pytest.mark.parametrize("digits", [5, 2])
def test_scidocs_ranks_by_distances_of_five_digits(tmp_path: Path, digits: int) -> None:
    """Its rankings are trec_eval on minus the Euclidean distance, rounded; ours is not rounded.

    Rounding to five digits ties almost nothing, so the means agree to 1e-4; two digits would not.
    """
    draw = np.random.default_rng(1)
    lines, grades, run = [], {}, {}
    for query in range(40):
        pool = draw.choice(np.arange(100, 400), 25, replace=False).tolist()
        grades[str(query)] = {str(paper): int(place < 5) for place, paper in enumerate(pool)}
        lines += [f"{query} 0 {paper} {int(place < 5)}" for place, paper in enumerate(pool)]
        away = {p: np.linalg.norm(_vector(f"text {query}") - _vector(f"text {p}")) for p in pool}
        run[str(query)] = {str(paper): -round(float(d), digits) for paper, d in away.items()}
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "test.qrel").write_text("\n".join(lines) + "\n")
    papers = {str(n): {"title": f"text {n}", "abstract": None} for n in range(400)}
    (folder / "papers.json").write_text(json.dumps(papers))
    entry = _benchmark(
        "rerank", ["map", "ndcg"], format="scidocs", texts="papers.json", similarity="l2"
    )
    found = _scored(entry, tmp_path).scores
    theirs = _means(grades, run, {"map": "map", "ndcg": "ndcg"})
    close = all(abs(found[name] - theirs[name]) < 1e-4 for name in theirs)
    assert close == (digits == 5)


def test_beirs_evaluator(tmp_path: Path) -> None:
    """Its steps: products, the document with the query's id dropped, trec_eval, and its own MRR.

    Some queries have nothing relevant, some grades are below zero; the best 1,000 are ranked.
    """
    draw = np.random.default_rng(2)
    documents = [str(n) for n in range(60)]
    queries = [str(n) for n in range(30)] + [f"q{n}" for n in range(20)]
    grades: Grades = {
        query: {
            str(name): int(draw.integers(-1, 1 if place < 4 else 3))
            for name in draw.choice(documents, 12, replace=False)
        }
        for place, query in enumerate(queries)
    }
    folder = tmp_path / "set"
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": n, "title": f"text {n}", "text": ""} for n in documents]
    )
    asked = {query: f"text {1000 + place}" for place, query in enumerate(queries)}
    write_jsonl(folder / "queries.jsonl", [{"_id": q, "text": text} for q, text in asked.items()])
    rows = [(q, d, grade) for q, judged in grades.items() for d, grade in judged.items()]
    write_rows(folder / "qrels/test.tsv", [HEADER, *rows])
    run: Run = {}
    for query, text in asked.items():
        scores = {name: float(_vector(f"text {name}") @ _vector(text)) for name in documents}
        run[query] = {name: score for name, score in scores.items() if name != query}
    measures = {
        "ndcg@10": "ndcg_cut.10",
        "map@1000": "map_cut.1000",
        "recall@100": "recall.100",
        "precision@10": "P.10",
    }
    entry = _benchmark(
        "search", [*measures, "mrr@10"], mode="beir", nothing_relevant="zero"
    ).model_copy(update={"task": "search"})
    found = _scored(entry, tmp_path).scores
    theirs = _means(grades, run, measures)
    reciprocal = []
    for query, scores in run.items():
        best = sorted(scores, key=lambda name, of=scores: of[name], reverse=True)[:10]
        hits = [place for place, name in enumerate(best, 1) if grades[query].get(name, 0) > 0]
        reciprocal.append(1 / hits[0] if hits else 0.0)
    theirs["mrr@10"] = float(np.mean(reciprocal))
    assert found == pytest.approx(theirs, abs=1e-6)
    assert all(0.05 < score < 0.95 for score in theirs.values())


# F1 × 100 (macro but for two classes) of lightning.classification.LinearSVC(random_state=42) of
# sklearn-contrib-lightning 0.6.2 (scikit-learn 1.2.2) on the data below: squared hinge, for several
# labels hinge, at one C, in scikit-learn's grids of C by three folds, and of samples with C = 1.
LIGHTNING = {
    ("classes", 0.01): 58.14551206561352,
    ("classes", 0.1): 56.644013283120344,
    ("classes", 1.0): 57.48311130126922,
    ("classes", 10.0): 57.48311130126922,
    ("labels", 0.01): 69.4902697491814,
    ("labels", 0.1): 71.27031009018586,
    ("labels", 1.0): 72.31725620706129,
    ("classes", "scidocs"): 54.35909711218405,  # chose C = 0.001
    ("two classes", "scirepeval"): 86.36363636363636,  # chose C = 1
    ("samples", 64): 47.46422643360431,
    ("samples", 24): 36.98713482735894,
}
UNCONVERGED = 43.11135768949814
"""Its macro F1 × 100 with C = 100, where it stops after 1,000 passes."""
GRIDS = {"scirepeval": np.logspace(-2, 2, 5).tolist(), "scidocs": np.logspace(-4, 2, 7).tolist()}


def _embedded() -> tuple[FloatArray, NDArray[np.float64]]:
    """Return embeddings of papers, and a noisy score of each for five classes."""
    draw = np.random.default_rng(22)
    x = (draw.normal(size=(420, 12)) + 0.3).astype(np.float32)
    assert float(x.sum(dtype=np.float64)) == 1521.0754125133535, "the data are others"
    weights, noise = draw.normal(size=(12, 5)), draw.normal(size=(420, 5))
    return x, x.astype(np.float64) @ weights + 2.5 * noise


def _classified(case: str, **probe: Any) -> Outcome:
    """Score embeddings of 300 and 120 papers that carry signal for five classes or labels."""
    x, score_NS = _embedded()
    labels = {
        "two classes": [[str(int(row[0] > 0))] for row in score_NS],
        "labels": [[str(name) for name in np.flatnonzero(row > 1)] for row in score_NS],
    }.get(case, [[str(row.argmax())] for row in score_NS])
    ids = [f"p{row}" for row in range(420)]
    texts = [Text("paper", name) for name in ids]
    rows = np.arange(300), np.arange(300, 420)
    papers = PaperSet(
        "made", "classification", ids, texts, *rows, labels, np.zeros(420), files=[Path("made")]
    )
    options = Probe(**{"intercept": False, "multi_label": case == "labels", **probe})
    metric = "f1" if case == "two classes" else "macro_f1"
    return classification_linear(
        _benchmark("classification_linear", [metric], probe=options), papers, x
    )


@pytest.mark.parametrize(("case", "how"), [key for key in LIGHTNING if key[0] != "samples"])
def test_classes_by_the_solver_of_published_numbers(case: str, how: float | str) -> None:
    """The same predictions of all 120 papers, so the same F1 to float64's last digits."""
    costs = GRIDS[how] if isinstance(how, str) else [how]
    outcome = _classified(case, costs=costs)
    [score] = outcome.scores.values()
    assert 100 * score == pytest.approx(LIGHTNING[case, how], abs=1e-9)
    if isinstance(how, str):
        assert outcome.details["C"] == pytest.approx({"scidocs": 0.001, "scirepeval": 1.0}[how])


def test_logistic_regression_is_scikit_learns() -> None:
    outcome = _classified("classes", costs=[0.01, 1.0], model="logistic", intercept=True)
    x, score_NS = _embedded()
    x, gold = x.astype(np.float64), score_NS.argmax(axis=1)
    grid = GridSearchCV(LogisticRegression(max_iter=10_000), {"C": [0.01, 1.0]}, cv=3)
    predicted = grid.fit(x[:300], gold[:300]).predict(x[300:])
    assert outcome.per_query["predicted"] == list(map(str, predicted))
    assert outcome.details["C"] == grid.best_params_["C"]


@pytest.mark.parametrize(("size", "draws"), [(64, 3), (24, 5)])
def test_samples_by_the_solver_of_published_numbers(size: int, draws: int) -> None:
    """Each held-out fold of ceil(300 / size) is a sample; the score is the mean of the first."""
    shots = [FewShot(size=size, iterations=draws)]
    outcome = _classified("classes", costs=[1.0], few_shot=shots)
    found = 100 * outcome.scores[f"macro_f1+{size}shot"]
    assert found == pytest.approx(LIGHTNING["samples", size], abs=1e-9)


def test_a_large_cost_is_where_that_solver_and_ours_part() -> None:
    """Ours converges and stays near its scores for smaller C; a grid can choose differently."""
    [score] = _classified("classes", costs=[100.0]).scores.values()
    assert 100 * score == pytest.approx(LIGHTNING["classes", 10.0], abs=0.5)
    assert abs(100 * score - UNCONVERGED) > 10
