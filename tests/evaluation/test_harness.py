"""Evaluating on several ranks with a store, and systems that cannot score every set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.checkpoints import save_pretrained
from scimult.checkpoints.grow import grow_task
from scimult.errors import ConfigError, DataError
from scimult.evaluation.benchmark import Benchmark, Probe
from scimult.evaluation.harness import LoadedSet, encode_on_all_ranks, evaluate, load_sets, routed
from scimult.evaluation.results import Result
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import BM25System, DenseSystem
from scimult.inference import Ensemble, SciMult
from scimult.retrieval.store import StoringEncoder
from scimult.tasks import Task
from scimult.types import FloatArray, TextEncoder
from tests.benchmark_sets import (
    WordEncoder,
    benchmark,
    made_suite,
    write_coarse,
    write_jsonl,
    write_links,
    write_rerank,
    write_rows,
    write_search,
)
from tests.ranks import run_ranks
from tests.tiny import save_tiny_model


def _write_labelled(folder: Path) -> Benchmark:
    """Write papers whose first word gives away their label, and a split."""
    words = ["graph", "water"] * 12
    papers = [
        {
            "id": f"p{row}",
            "title": f"{word} {word} {word} {word} {row}",
            "abstract": "",
            "labels": [word],
        }
        for row, word in enumerate(words)
    ]
    write_jsonl(folder / "linear/papers.jsonl", papers)
    split = [(f"p{row}", "train" if row < 16 else "test") for row in range(24)]
    write_rows(folder / "linear/split.csv", [("id", "split"), *split], ",")
    metrics, probe = ["macro_f1", "accuracy"], Probe(costs=[1.0, 10.0])
    return benchmark("linear", "classification", "classification_linear", metrics, probe=probe)


def _load(folder: Path) -> tuple[Suite, dict[str, LoadedSet]]:
    made = [write(folder) for write in (write_search, write_links, write_coarse, _write_labelled)]
    suite = made_suite(*made)
    return suite, load_sets(suite, folder)


def _scores(result: Result) -> dict[str, dict[str, float]]:
    return {name: entry.scores for name, entry in result.sets.items()}


def test_a_linear_set_stands_beside_the_others(tmp_path: Path) -> None:
    suite, sets = _load(tmp_path)
    result = evaluate(DenseSystem(WordEncoder()), suite, sets, tmp_path / "out", confidence=0.9)
    linear = result.sets["linear"]
    assert linear.scores == {"macro_f1": 1.0, "accuracy": 1.0}
    assert linear.counts == {"queries": 8, "candidates": 2, "relevant": 8, "train": 16}
    assert linear.details["intercept"] is True
    assert set(linear.intervals) == {"macro_f1"}
    assert set(result.averages) == {"classification", "link_prediction", "search", "all"}


def test_a_set_is_encoded_for_its_task_or_for_the_fallback(tmp_path: Path) -> None:
    """A model that knows the task takes its route, any other model the fallback's."""
    three = save_tiny_model(tmp_path / "three")
    new = Task(name="regression", format="regression")
    grown = grow_task(three, new, like="search")
    save_pretrained(tmp_path / "four", grown.model.state_dict(), grown.tokenizer, grown.config)
    knows, knows_not = (SciMult.from_pretrained(tmp_path / name) for name in ("four", "three"))
    entry = _write_labelled(tmp_path).model_copy(
        update={"task": "regression", "fallback_task": "classification"}
    )
    suite = Suite(name="own", description="mine", how_to_get="ask me", benchmarks={"linear": entry})
    sets = load_sets(suite, tmp_path)
    texts = sets["linear"].dataset.texts  # type: ignore[union-attr]
    encoders: list[tuple[TextEncoder, str, FloatArray]] = [
        (knows, "regression", knows.encode(texts, task="search")),
        (knows_not, "classification", knows_not.encode(texts, task="classification")),
        (
            StoringEncoder(knows, tmp_path / "store", "a"),
            "regression",
            knows.encode(texts, task="search"),
        ),
        (
            Ensemble([knows, knows_not], name="both"),
            "classification",
            knows_not.encode(texts, task="classification"),
        ),
        # An encoder that does not declare its tasks.
        (
            WordEncoder(),
            "classification",
            WordEncoder().encode(texts, task="classification", role="query"),
        ),
    ]
    for place, (encoder, task, expected) in enumerate(encoders):
        system = DenseSystem(encoder)
        result = evaluate(system, suite, sets, tmp_path / f"out{place}")
        assert result.sets["linear"].encoded_as == task
        assert set(result.averages) == {"regression", "all"}
        papers = routed(sets["linear"], system).dataset
        np.testing.assert_array_equal(system.paper_embeddings(papers), expected)  # type: ignore[arg-type]


def test_what_bm25_cannot_do_is_named(tmp_path: Path) -> None:
    suite, sets = _load(tmp_path)
    result = evaluate(BM25System(), suite, sets, tmp_path / "out")
    assert list(result.not_scored) == ["linear"]
    assert "linear" not in result.sets
    with pytest.raises(ConfigError, match="BM25 can score no set"):
        evaluate(BM25System(), suite, {"linear": sets["linear"]}, tmp_path / "out")


def _evaluate_on_rank(folder: Path, rank_folder: Path) -> tuple[int, dict[str, dict[str, float]]]:
    from scimult import distributed

    suite, sets = _load(rank_folder / f"data{distributed.rank()}")
    inner = WordEncoder()
    system = DenseSystem(StoringEncoder(inner, folder, "m"))
    encode_on_all_ranks(system, sets)
    mine = len(inner.encoded)
    result = evaluate(system, suite, sets, rank_folder / f"out{distributed.rank()}")
    assert len(inner.encoded) == mine, "scoring encodes nothing more"
    return mine, _scores(result)


@pytest.mark.ranks
def test_ranks_encode_a_share_each_and_score_as_one(tmp_path: Path) -> None:
    ranks = run_ranks(_evaluate_on_rank, 2, tmp_path, tmp_path / "store", tmp_path)
    suite, sets = _load(tmp_path / "single")
    alone = WordEncoder()
    single = evaluate(DenseSystem(alone), suite, sets, tmp_path / "out")
    assert [scores for _, scores in ranks] == [_scores(single)] * 2
    assert sum(mine for mine, _ in ranks) == len(alone.encoded)
    assert all(mine > 10 for mine, _ in ranks)


def test_cost_counts_what_a_store_did_not_have(tmp_path: Path) -> None:
    suite, sets = _load(tmp_path)
    texts = []
    for run in ("first", "again"):
        inner = WordEncoder()
        system = DenseSystem(StoringEncoder(inner, tmp_path / "store", "m"))
        result = evaluate(system, suite, sets, tmp_path / run)
        texts.append(sum(entry.cost["texts"] for entry in result.sets.values()))
        assert texts[-1] == len(inner.encoded)
    assert texts[0] > 10
    assert texts[1] == 0


def test_splits_are_scored_as_one_and_queries_of_others_are_left_out(tmp_path: Path) -> None:
    """A query judged only in another split belongs there; one judged in none is an error."""
    entry = write_search(tmp_path)
    qrels = tmp_path / "search/qrels"
    lines = (qrels / "test.tsv").read_text().splitlines()
    (qrels / "test.tsv").write_text("\n".join(line for line in lines if line[:2] != "q3") + "\n")
    (qrels / "dev.tsv").write_text(lines[0] + "\nq3\td2\t1\n")
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"search": entry})
    assert load_sets(suite, tmp_path)["search"].facts.counts["queries"] == 2
    both = entry.model_copy(update={"split": "test+dev"})
    merged = Suite(name="own", description="", how_to_get="", benchmarks={"search": both})
    assert load_sets(merged, tmp_path)["search"].facts.counts["queries"] == 3


def test_a_table_next_to_named_judgments_is_no_other_split(tmp_path: Path) -> None:
    """Candidates of a query judge nothing, whatever their columns are called."""
    entry = write_rerank(tmp_path)
    folder = tmp_path / "rerank"
    lines = (folder / "qrels/test.tsv").read_text().splitlines()
    (folder / "judged.tsv").write_text("\n".join(line for line in lines if line[:2] != "x1") + "\n")
    named = entry.model_copy(update={"judgments": "judged.tsv"})
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"rerank": named})
    with pytest.raises(DataError, match=r"judged.tsv: query has no judgment \(value: 'x1'\)"):
        load_sets(suite, tmp_path)


def test_expected_counts_compare_what_is_given(tmp_path: Path) -> None:
    write_search(tmp_path)
    entry = benchmark("search", "search", "search", ["map"], expected={"candidates": 5})
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"search": entry})
    assert load_sets(suite, tmp_path)["search"].facts.counts["queries"] == 3
