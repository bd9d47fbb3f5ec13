"""CSFCube, DORIS-MAE and LitSearch in their authors' files, scored by their definitions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import missing_files, read_dataset
from scimult.evaluation.formats.checks import BLANK, NO_TEXT
from scimult.evaluation.protocols import function_of
from scimult.evaluation.results import SetResult, averages
from scimult.evaluation.suites import load_suite
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset
from tests.benchmark_sets import WordEncoder, write_jsonl
from tests.made_results import set_result

FACETS = ("background", "method", "result")
WORDS = "graphs proteins stars markets cells layouts folding water matrices kernels".split()


def _sentence(draw: np.random.Generator) -> str:
    return " ".join(draw.choice(WORDS, size=6)) + "."


def _benchmark(name: str, **changes: Any) -> Benchmark:
    entry = load_suite("science").benchmarks[name]
    return entry.model_copy(update={"expected": None, **changes})


def _scored(entry: Benchmark, root: Path) -> tuple[Dataset, dict[str, float], list[list[int]]]:
    """Return the data, its scores, and the grades of each query's list in ranked order."""
    data = read_dataset("set", entry, root, "", Rejects())
    assert isinstance(data, Dataset)
    outcome = function_of(entry.protocol)(entry, data, DenseSystem(WordEncoder()).ranker(data))
    grades = data.qrels.grades_of(outcome.rankings[""].rows_QK)
    lengths = (outcome.rankings[""].rows_QK >= 0).sum(axis=1)
    ranked = [row[:length].tolist() for row, length in zip(grades, lengths, strict=True)]
    return data, outcome.scores, ranked


@pytest.fixture
def csfcube(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    papers = [
        {"paper_id": str(n), "title": _sentence(draw), "abstract": [_sentence(draw)] * (n % 3)}
        for n in range(80)
    ]
    write_jsonl(tmp_path / "csfcube/abstracts-csfcube-preds.jsonl", papers)
    folds: dict[str, list[str]] = {"fold1_test": [], "fold2_test": []}
    for number, facet in enumerate(FACETS):
        pools = {}
        for query in range(4 + number):
            pool = draw.permutation(80)[:40].tolist()
            grades = draw.integers(0, 4, size=40).tolist()
            pools[str(query)] = {"cands": list(map(str, pool)), "relevance_adju": grades}
            folds["fold1_test" if query < 3 else "fold2_test"].append(f"{query}_{facet}")
        path = tmp_path / f"csfcube/test-pid2anns-csfcube-{facet}.json"
        path.write_text(json.dumps(pools))
    (tmp_path / "csfcube/evaluation_splits.json").write_text(json.dumps({"all": folds}))
    return tmp_path


def test_csfcube_is_the_mean_of_the_means_of_two_folds(csfcube: Path) -> None:
    data, scores, ranked = _scored(_benchmark("csfcube"), csfcube)
    assert len(data.query_ids) == 15  # each paper and facet
    folds = json.loads((csfcube / "csfcube/evaluation_splits.json").read_text())["all"]

    def over_folds(score: Callable[[list[int]], float]) -> float:
        by_query = dict(zip(data.query_ids, map(score, ranked), strict=True))
        means = [np.mean([by_query[query] for query in queries]) for queries in folds.values()]
        return float(np.mean(means))

    def dcg(grades: list[int]) -> float:
        return sum(grade / max(1, math.log2(rank)) for rank, grade in enumerate(grades, 1))

    def ndcg(grades: list[int]) -> float:
        cut = int(0.2 * len(grades))
        return dcg(grades[:cut]) / dcg(sorted(grades, reverse=True)[:cut])

    assert scores["ndcg_csfcube%20"] == pytest.approx(over_folds(ndcg), abs=1e-12)
    precise = over_folds(lambda grades: sum(grade >= 2 for grade in grades[:20]) / 20)
    assert scores["precision(rel=2)@20"] == pytest.approx(precise, abs=1e-12)


def test_a_query_paper_in_its_own_pool_is_left_out(csfcube: Path) -> None:
    data, _, ranked = _scored(_benchmark("csfcube"), csfcube)
    assert data.lists is not None
    for query, rows in zip(data.query_ids, data.lists, strict=True):
        assert query.rpartition("_")[0] not in {data.candidate_ids[row] for row in rows}
    own = sum(len(grades) == 39 for grades in ranked)
    assert own > 0
    assert list(data.remarks.values()) == [own]


def test_csfcube_without_folds_of_a_query_is_an_error(csfcube: Path) -> None:
    path = csfcube / "csfcube/evaluation_splits.json"
    path.write_text(json.dumps({"all": {"fold1_test": ["0_background"]}}))
    with pytest.raises(DataError, match="a query is in no fold.*0_method.*Fix"):
        _scored(_benchmark("csfcube"), csfcube)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"relevance_adju": [1]}, "'relevance_adju' is not their grades"),
        ({"cands": ["1", "2"], "relevance_adju": [1]}, "'relevance_adju' is not their grades"),
        ({"cands": "12", "relevance_adju": [1, 2]}, "'cands' is not a list of strings"),
        ({"cands": ["1"], "relevance_adju": [1.5]}, "'score' is not whole"),
        ({"cands": ["1", "1"], "relevance_adju": [1, 2]}, "candidate has two grades"),
    ],
)
def test_a_bad_pool_of_csfcube_is_named_or_left_out(
    csfcube: Path, pool: dict[str, Any], message: str
) -> None:
    path = csfcube / "csfcube/test-pid2anns-csfcube-method.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "0": pool}))
    with pytest.raises(DataError, match=f"method.json:1: .*{message}.*Fix"):
        _scored(_benchmark("csfcube"), csfcube)
    rejects = Rejects(skip_bad=True)
    data = read_dataset("set", _benchmark("csfcube"), csfcube, "", rejects)
    assert data.counts["queries"] == 14
    assert sum(rejects.counts.values()) == 1


def test_a_blank_paper_of_csfcube_is_counted_but_no_query(csfcube: Path) -> None:
    path = csfcube / "csfcube/abstracts-csfcube-preds.jsonl"
    papers = [json.loads(line) for line in path.read_text().splitlines()]
    papers[70] |= {"title": " ", "abstract": []}
    write_jsonl(path, papers)
    data, _, _ = _scored(_benchmark("csfcube"), csfcube)
    assert data.candidates[70] == BLANK
    assert data.remarks[NO_TEXT] == 1
    papers[0] |= {"title": "", "abstract": [""]}
    write_jsonl(path, papers)
    with pytest.raises(DataError, match=r"judged query has no text \(value: '0_"):
        _scored(_benchmark("csfcube"), csfcube)


@pytest.fixture
def doris_mae(tmp_path: Path) -> Path:
    draw = np.random.default_rng(1)
    queries = [
        {
            "query_text": f"{_sentence(draw)} {_sentence(draw)}",
            "candidate_pool": draw.permutation(60)[:30].tolist(),
            "aspects": {f"{q}a": [f"{q}a1", f"{q}a2"], f"{q}b": []},
        }
        for q in range(6)
    ]
    names = ("a", "a1", "a2", "b")
    annotations = [
        {
            "aspect_id": f"{q}{name}",
            "abstract_id": paper,
            "score": int(draw.integers(0, 3)) * (q < 5),
        }
        for q, query in enumerate(queries)
        for name in names
        for paper in query["candidate_pool"]
    ]
    tree = {
        "Corpus": [{"title": "T", "original_abstract": _sentence(draw)} for _ in range(60)],
        "Query": queries,
        "Annotation": annotations,
    }
    (tmp_path / "doris_mae").mkdir()
    (tmp_path / "doris_mae/DORIS-MAE_dataset_v1.json").write_text(json.dumps(tree))
    return tmp_path


def test_doris_mae_adds_up_the_scores_of_aspects(doris_mae: Path) -> None:
    data, scores, ranked = _scored(_benchmark("doris_mae"), doris_mae)
    tree = json.loads((doris_mae / "doris_mae/DORIS-MAE_dataset_v1.json").read_text())
    sums = {
        (a["abstract_id"], q): sum(
            b["score"]
            for b in tree["Annotation"]
            if b["abstract_id"] == a["abstract_id"] and b["aspect_id"].startswith(str(q))
        )
        for a in tree["Annotation"]
        for q in (0, 1)
    }
    for q in (0, 1):
        pool = tree["Query"][q]["candidate_pool"]
        assert sorted(ranked[q]) == sorted(sums[paper, q] for paper in pool)

    def gain(grades: list[int]) -> float:
        return sum(2**grade / math.log2(place + 2) for place, grade in enumerate(grades))

    cut = int(0.1 * 30)
    wanted = [gain(some[:cut]) / gain(sorted(some, reverse=True)[:cut]) for some in ranked]
    assert scores["ndcg_doris_mae%10"] == pytest.approx(float(np.mean(wanted)), abs=1e-12)
    assert list(data.remarks.values()) == [1]  # the last query has nothing
    # As get_text_list of github.com/kwang927/Doris-Mae-Dataset has them.
    abstracts = [entry["original_abstract"] for entry in tree["Corpus"]]
    assert {text.joined for text in data.candidates} <= set(abstracts)


def test_doris_mae_takes_a_mean_score_of_one_as_relevant(doris_mae: Path) -> None:
    graded, _, grades = _scored(_benchmark("doris_mae"), doris_mae)
    data, scores, ranked = _scored(_benchmark("doris_mae_relevant"), doris_mae)
    assert data.query_ids == graded.query_ids
    assert ranked == [[int(grade >= 4) for grade in some] for some in grades]  # of 4 aspects
    hits = [sum(some[: sum(some)]) / sum(some) for some in ranked]
    assert scores["r_precision"] == pytest.approx(float(np.mean(hits)), abs=1e-12)
    with pytest.raises(ConfigError, match="no such split"):
        _scored(_benchmark("doris_mae", split="test"), doris_mae)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("Annotation", {"aspect_id": None}, "field 'aspect_id' is null"),
        ("Annotation", {"score": 0.5}, "field 'score' is not whole"),
        ("Query", {"aspects": ["0a"]}, "query has no aspects"),
        ("Query", {"query_text": " "}, "field 'query_text' is empty"),
        ("Corpus", {"original_abstract": 3}, "field 'original_abstract' is not a string"),
    ],
)
def test_bad_entries_of_doris_mae_are_named_or_left_out(
    doris_mae: Path, part: str, change: dict[str, Any], message: str
) -> None:
    path = doris_mae / "doris_mae/DORIS-MAE_dataset_v1.json"
    tree = json.loads(path.read_text())
    tree[part][1] |= change
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError, match=f"v1.json:2: {message}.*Fix"):
        _scored(_benchmark("doris_mae"), doris_mae)
    rejects = Rejects(skip_bad=True)
    read_dataset("set", _benchmark("doris_mae"), doris_mae, "", rejects)
    assert next(iter(rejects.counts)) == message


def test_a_pool_of_doris_mae_with_an_unknown_abstract(doris_mae: Path) -> None:
    path = doris_mae / "doris_mae/DORIS-MAE_dataset_v1.json"
    tree = json.loads(path.read_text())
    tree["Query"][0]["candidate_pool"].append(99)
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError, match=r"judged paper has no text.*'99'"):
        _scored(_benchmark("doris_mae"), doris_mae)


def test_a_blank_abstract_of_doris_mae_is_counted(doris_mae: Path) -> None:
    path = doris_mae / "doris_mae/DORIS-MAE_dataset_v1.json"
    tree = json.loads(path.read_text())
    listed = tree["Query"][0]["candidate_pool"][0]
    tree["Corpus"][listed]["original_abstract"] = " "
    path.write_text(json.dumps(tree))
    data, _, _ = _scored(_benchmark("doris_mae"), doris_mae)
    assert data.remarks[NO_TEXT] == 1
    assert data.candidates[data.candidate_ids.index(str(listed))] == BLANK


def test_litsearch_searches_its_whole_corpus(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    papers: list[dict[str, Any]] = [
        {"corpusid": n, "title": _sentence(draw), "abstract": _sentence(draw)} for n in range(40)
    ]
    papers.append({"corpusid": 40, "title": None, "abstract": ""})
    write_jsonl(tmp_path / "litsearch/corpus.jsonl", papers)
    queries = [
        {
            "query": _sentence(draw),
            "query_set": "inline_acl" if q % 2 else "manual_iclr",
            "specificity": q % 3 // 2,
            "corpusids": draw.permutation(40)[:2].tolist(),
        }
        for q in range(12)
    ]
    write_jsonl(tmp_path / "litsearch/query.jsonl", queries)
    entry = _benchmark("litsearch")
    data, scores, ranked = _scored(entry, tmp_path)
    assert len(data.candidate_ids) == 41
    assert list(data.remarks.values()) == [1]
    hits = [sum(grades[:5]) / 2 for grades in ranked]
    assert scores["recall@5"] == pytest.approx(float(np.mean(hits)), abs=1e-12)
    outcome = function_of("search")(entry, data, DenseSystem(WordEncoder()).ranker(data))
    by_group = outcome.details["by_group"]["recall@5"]
    specific = [hit for hit, query in zip(hits, queries, strict=True) if query["specificity"]]
    chosen = [by_group["inline_acl, specific"], by_group["manual_iclr, specific"]]
    assert float(np.mean(chosen)) == pytest.approx(float(np.mean(specific)), abs=1e-12)


@pytest.mark.parametrize("query", [None, " "])
def test_litsearch_leaves_out_a_question_without_words(tmp_path: Path, query: str | None) -> None:
    """The others keep the numbers of their lines."""
    write_jsonl(tmp_path / "litsearch/corpus.jsonl", [{"corpusid": 7, "title": "Water"}])
    answer = {"query_set": "inline_acl", "specificity": 1, "corpusids": [7]}
    write_jsonl(
        tmp_path / "litsearch/query.jsonl", [{"query": text, **answer} for text in (query, "wet")]
    )
    entry = _benchmark("litsearch")
    with pytest.raises(DataError, match=r"query\.jsonl:1: field 'query' is (null|empty)"):
        read_dataset("litsearch", entry, tmp_path, "", Rejects())
    rejects = Rejects(skip_bad=True)
    data = read_dataset("litsearch", entry, tmp_path, "", rejects)
    assert isinstance(data, Dataset)
    assert data.query_ids == ["q2"]
    assert rejects.counts.total() == 1


def test_the_science_suite_names_all_of_its_sets(tmp_path: Path) -> None:
    suite = load_suite("science")
    groups = {entry.group for entry in suite.benchmarks.values()}
    assert groups == {"classification", "regression", "proximity", "reviewers", "search"}
    base = load_suite("scirepeval").benchmarks
    for name, entry in base.items():
        ours = suite.benchmarks[name]
        assert ours.model_copy(update={"group": entry.group}) == entry
    others = ("csfcube", "litsearch", "doris_mae", "doris_mae_relevant")
    assert [name for name in suite.benchmarks if name not in base] == list(others)
    assert all(missing_files(suite.benchmarks[name], tmp_path) for name in suite.benchmarks)


def test_macro_is_the_mean_over_groups() -> None:
    def entry(group: str | None, score: float) -> SetResult:
        return set_result("map", {"map": score}, group=group)

    sets = {"a": entry("x", 0.1), "b": entry("x", 0.3), "c": entry("y", 0.8)}
    found = averages(sets)
    assert found["macro"] == pytest.approx((0.2 + 0.8) / 2)
    assert found["all"] == pytest.approx(1.2 / 3)
    assert "macro" not in averages({**sets, "d": entry(None, 0.5)})
    assert "macro" not in averages({"a": sets["a"], "b": sets["b"]})
