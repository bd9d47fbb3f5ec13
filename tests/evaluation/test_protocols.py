"""Each protocol against a slow, literal implementation of its description."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import f1_score

from scimult.data.records import Rejects
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.name_matching import words
from scimult.evaluation.protocols import Outcome, function_of
from scimult.evaluation.rankings import classification_coarse
from scimult.evaluation.systems import BM25System, DenseSystem
from scimult.evaluation.task_data import Dataset
from tests.benchmark_sets import (
    WordEncoder,
    write_coarse,
    write_fields,
    write_links,
    write_rerank,
    write_search,
)

Lists = dict[str, list[str]]


def _run(benchmark: Benchmark, root: Path, width: int = 16) -> tuple[Dataset, Outcome]:
    data = read_dataset(benchmark.folder, benchmark, root, "", Rejects())
    ranker = DenseSystem(WordEncoder(width=width)).ranker(data)
    return data, function_of(benchmark.protocol)(benchmark, data, ranker)


def _literal_lists(data: Dataset, width: int = 16) -> Lists:
    """Sort all candidates of each query by the encoder's dot product."""
    encoder = WordEncoder(width=width)
    queries = encoder.encode(data.queries, task=data.task, role="query")
    candidates = encoder.encode(data.candidates, task=data.task, role="candidate")
    lists = {}
    for query, vector in zip(data.query_ids, queries, strict=True):
        scores = dict(zip(data.candidate_ids, (candidates @ vector).tolist(), strict=True))
        lists[query] = sorted(scores, key=lambda name: (scores[name], name), reverse=True)
    return lists


def _gold(data: Dataset) -> dict[str, dict[str, int]]:
    return {
        query: {data.candidate_ids[row]: grade for row, grade in zip(rows, grades, strict=True)}
        for query, rows, grades in zip(
            data.query_ids, data.qrels.rows, data.qrels.grades, strict=True
        )
    }


def _recall(lists: Lists, data: Dataset, k: int) -> list[float]:
    gold = {
        query: {name for name, grade in judged.items() if grade > 0}
        for query, judged in _gold(data).items()
    }
    return [len(gold[query] & set(lists[query][:k])) / len(gold[query]) for query in gold]


def _ndcg(lists: Lists, data: Dataset, k: int) -> list[float]:
    values = []
    for query, judged in _gold(data).items():
        gains = [judged.get(name, 0) for name in lists[query][:k]]
        ideal = sorted(judged.values(), reverse=True)[:k]
        dcg, best = (
            sum(gain / np.log2(rank + 2) for rank, gain in enumerate(row)) for row in (gains, ideal)
        )
        values.append(dcg / best)
    return values


def test_search(tmp_path: Path) -> None:
    data, outcome = _run(write_search(tmp_path), tmp_path)
    lists = _literal_lists(data)
    assert outcome.per_query["ndcg@10"] == pytest.approx(_ndcg(lists, data, 10))
    assert outcome.per_query["recall@2"] == _recall(lists, data, 2)
    assert outcome.scores["ndcg@10"] == pytest.approx(np.mean(_ndcg(lists, data, 10)))


@pytest.mark.parametrize("mode", ["default", "paper"])
def test_link_retrieval_leaves_the_query_paper_out_except_in_paper_mode(
    tmp_path: Path, mode: str
) -> None:
    benchmark = write_links(tmp_path).model_copy(update={"mode": mode})
    data, outcome = _run(benchmark, tmp_path)
    lists = _literal_lists(data)
    assert lists["d4"][0] == "d4"
    if mode == "default":
        lists = {query: [name for name in names if name != query] for query, names in lists.items()}
    for k in (1, 3):
        assert outcome.per_query[f"recall@{k}"] == _recall(lists, data, k)
    listed_d4 = [data.candidate_ids[row] for row in outcome.rankings[""].rows_QK[2] if row >= 0]
    assert ("d4" in listed_d4) == (mode == "paper")


def test_rerank_orders_only_the_listed_candidates(tmp_path: Path) -> None:
    data, outcome = _run(write_rerank(tmp_path), tmp_path)
    listed = {"d1": {"d4", "d2"}, "x1": {"d3", "d5", "d1"}, "d4": {"d1", "d2", "d3"}}
    lists = {
        query: [name for name in names if name in listed[query]]
        for query, names in _literal_lists(data).items()
    }
    assert outcome.per_query["ndcg"] == pytest.approx(_ndcg(lists, data, 99))
    assert outcome.per_query["ndcg@5"] == pytest.approx(_ndcg(lists, data, 5))
    found = outcome.rankings[""].rows_QK
    assert [[data.candidate_ids[row] for row in rows if row >= 0] for rows in found] == list(
        lists.values()
    )


def test_fine_classification_without_and_with_names(tmp_path: Path) -> None:
    """A width of 1 makes the encoder bad enough for names to help."""
    data, outcome = _run(write_fields(tmp_path), tmp_path, width=1)
    plain = _literal_lists(data, width=1)
    matched = {"p1": ["l1"], "p2": ["l2", "l4"], "p3": []}
    named = {
        query: sorted(names, key=lambda name, query=query: name not in matched[query])
        for query, names in plain.items()
    }
    assert named != plain
    for k in (1, 2):
        assert outcome.per_query[f"recall@{k}"] == _recall(plain, data, k)
        assert outcome.per_query[f"recall@{k}+names"] == _recall(named, data, k)
    assert set(outcome.scores) == {"recall@1", "recall@2", "recall@1+names", "recall@2+names"}


def test_tokenised_text_is_matched_as_it_stands(tmp_path: Path) -> None:
    """Without normalisation, the capital of 'Peptides' hides the synonym 'peptides'."""
    benchmark = write_fields(tmp_path).model_copy(update={"name_matching": "tokens"})
    _, outcome = _run(benchmark, tmp_path, width=1)
    assert words("Peptides") == "peptides"
    assert outcome.rankings["+names"].rows_QK.tolist() == outcome.rankings[""].rows_QK.tolist()


def test_coarse_classification_is_macro_f1_of_the_best_label(tmp_path: Path) -> None:
    data, outcome = _run(write_coarse(tmp_path), tmp_path)
    predicted = [names[0] for names in _literal_lists(data).values()]
    gold = [next(iter(judged)) for judged in _gold(data).values()]
    wanted = f1_score(gold, predicted, average="macro", zero_division=0)
    assert outcome.scores == {"macro_f1": pytest.approx(wanted)}
    assert outcome.per_query["predicted"] == predicted
    assert outcome.per_query["gold"] == gold
    assert outcome.per_query["correct"] == [
        float(one == other) for one, other in zip(predicted, gold, strict=True)
    ]


def test_a_paper_that_shares_no_word_with_a_label_gets_none_from_bm25(tmp_path: Path) -> None:
    benchmark = write_coarse(tmp_path)
    data = read_dataset("coarse", benchmark, tmp_path, "", Rejects())
    outcome = classification_coarse(benchmark, data, BM25System().ranker(data))
    assert outcome.per_query["predicted"] == ["graph", "graph", "folding", ""]
    wanted = f1_score(
        ["graph", "folding", "folding", "water"],
        ["graph", "graph", "folding", "none"],
        labels=["graph", "folding", "water"],
        average="macro",
        zero_division=0,
    )
    assert outcome.scores["macro_f1"] == pytest.approx(wanted)


def test_search_in_beirs_mode_leaves_out_the_document_with_the_querys_id(tmp_path: Path) -> None:
    """trec_eval on whole lists without such documents, as in BEIR."""
    benchmark = write_search(tmp_path).model_copy(update={"metrics": ["ndcg@10", "map", "mrr"]})
    for name in ("queries.jsonl", "qrels/test.tsv"):
        path = tmp_path / "search" / name
        path.write_text(path.read_text().replace("q1", "d1"))
    usual, outcome = _run(benchmark, tmp_path)
    left_out = _run(benchmark.model_copy(update={"mode": "beir"}), tmp_path)[1]
    lists = {
        query: [name for name in names if name != query]
        for query, names in _literal_lists(usual).items()
    }
    run = {
        query: {name: float(len(names) - place) for place, name in enumerate(names)}
        for query, names in lists.items()
    }
    measures = {"ndcg@10": "ndcg_cut_10", "map": "map", "mrr": "recip_rank"}
    gold = {
        query: {name: int(grade) for name, grade in judged.items()}
        for query, judged in _gold(usual).items()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(gold, {"ndcg_cut.10", "map", "recip_rank"})
    scores = evaluator.evaluate(run)
    for metric, measure in measures.items():
        wanted = [scores[query][measure] for query in usual.query_ids]
        assert left_out.per_query[metric] == pytest.approx(wanted, abs=1e-12)
    assert outcome.scores["map"] > left_out.scores["map"]
