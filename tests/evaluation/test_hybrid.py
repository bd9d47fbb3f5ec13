"""Fused and reranked systems against plain loops and the cross-encoder's own ranking."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertForSequenceClassification

from scimult.data.ragged import Ragged
from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.hybrid import (
    FusedSystem,
    RerankedSystem,
    check_apart,
    halves,
    read_dev_sets,
)
from scimult.evaluation.metrics import compute, judge
from scimult.evaluation.rankings import classification_coarse
from scimult.evaluation.systems import BM25System, DenseSystem, System
from scimult.evaluation.task_data import Dataset, Reviewers
from scimult.files import sha256
from scimult.retrieval.fusion import fuse, reciprocal_ranks, scaled_scores
from scimult.retrieval.runs import Qrels, Ranking, places_of, ranking_of_pairs
from tests.benchmark_sets import (
    HEADER,
    REQUESTS,
    WordEncoder,
    write_coarse,
    write_jsonl,
    write_rows,
    write_search,
)
from tests.tiny import save_cross_encoder

CANDIDATES = 7
PLACES = places_of(np.arange(CANDIDATES)[::-1])
lists = st.lists(
    st.dictionaries(st.integers(0, CANDIDATES - 1), st.integers(-3, 3), max_size=CANDIDATES),
    min_size=1,
    max_size=4,
)


def ranking(scored: list[dict[int, int]]) -> Ranking:
    pairs = [(q, row, score) for q, found in enumerate(scored) for row, score in found.items()]
    query_P, row_P, score_P = np.array(pairs or np.zeros((0, 3)), dtype=np.int64).T
    return ranking_of_pairs(query_P, row_P, score_P.astype(np.float32), len(scored), PLACES)


@pytest.mark.long
@given(lists, st.data())
def test_fusing_equals_a_plain_loop(first: list[dict[int, int]], data: st.DataObject) -> None:
    second = data.draw(
        st.lists(lists.map(lambda found: found[0]), min_size=len(first), max_size=len(first))
    )
    runs = [ranking(first), ranking(second)]
    for points_of in (reciprocal_ranks, scaled_scores):
        fused = fuse(runs, [points_of(run) for run in runs], [0.75, 0.25], PLACES)
        for query in range(len(first)):
            totals: dict[int, float] = defaultdict(float)
            for run, weight in zip(runs, (0.75, 0.25), strict=True):
                rows = [row for row in run.rows_QK[query].tolist() if row >= 0]
                scores = run.scores_QK[query, : len(rows)].tolist()
                for rank, (row, score) in enumerate(zip(rows, scores, strict=True), start=1):
                    spread = max(scores) - min(scores)
                    scaled = (score - min(scores)) / spread if spread else 1.0
                    points = 1 / (60 + rank) if points_of is reciprocal_ranks else scaled
                    totals[row] += weight * points
            expected = sorted(totals, key=lambda row: (-np.float32(totals[row]), PLACES[row]))
            assert [row for row in fused.rows_QK[query].tolist() if row >= 0] == expected


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    benchmark = write_search(tmp_path)
    read = read_dataset("requests", benchmark, tmp_path, "write it", Rejects())
    assert isinstance(read, Dataset)
    return read


def test_a_weight_is_chosen_on_the_other_half_of_the_queries(dataset: Dataset) -> None:
    members: list[System] = [BM25System(), DenseSystem(WordEncoder("cosine"))]
    ranker = FusedSystem("hybrid", members, by="weights").ranker(dataset)
    found = ranker.search(3)
    runs = [member.ranker(dataset).search(1000) for member in members]
    points = [scaled_scores(run) for run in runs]
    places_C = places_of(np.argsort(dataset.candidate_ids)[::-1])
    half_Q = halves(dataset.query_ids)
    assert set(half_Q) == {0, 1}
    for query, half in enumerate(half_Q):
        best, kept = -1.0, None
        for share in np.linspace(0, 1, 21):
            fused = fuse(runs, points, [share, 1 - share], places_C)
            score = compute("ndcg@10", judge(fused, dataset.qrels))[half_Q != half].mean()
            if score > best:
                best, kept = score, fused
        assert kept is not None
        assert found.rows_QK[query].tolist() == kept.rows_QK[query, :3].tolist()


@pytest.mark.parametrize("kind", ["fused", "reranked"])
def test_lists_are_as_long_as_asked_for_where_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    entry = write_coarse(tmp_path).model_copy(update={"labels": "labels.jsonl"})
    labels = [{"id": name, "name": f"zebra {name}"} for name in ("graph", "folding", "water")]
    write_jsonl(tmp_path / "coarse/labels.jsonl", labels)
    papers = [{"id": f"p{n}", "title": "nothing", "labels": ["water"]} for n in range(4)]
    write_jsonl(tmp_path / "coarse/papers.jsonl", papers)
    data = read_dataset("coarse", entry, tmp_path, "", Rejects())
    assert isinstance(data, Dataset)
    scorer = lambda *_: lambda pairs: np.zeros(len(pairs), np.float32)  # noqa: E731
    monkeypatch.setattr("scimult.evaluation.hybrid.load_cross_encoder", scorer)
    fused = FusedSystem("fused", [BM25System(), BM25System("other", k1=1.2)])
    system = fused if kind == "fused" else RerankedSystem("reranked", BM25System(), "model")
    ranker = system.ranker(data)
    assert ranker.search(2).rows_QK.tolist() == [[-1, -1]] * 4
    assert ranker.search(5).rows_QK.shape == BM25System().ranker(data).search(5).rows_QK.shape
    outcome = classification_coarse(entry, data, ranker)
    assert outcome.scores == {"macro_f1": 0.0}
    assert outcome.per_query["predicted"] == [""] * 4


def test_a_weight_is_chosen_on_a_dev_set(tmp_path: Path) -> None:
    """Against a plain loop; the queries of the test set have no influence."""
    benchmark = write_search(tmp_path)
    further = [{"_id": "q4", "text": "large graphs"}, {"_id": "q5", "text": "folding water"}]
    write_jsonl(tmp_path / "search/queries.jsonl", [*REQUESTS, *further])
    write_rows(tmp_path / "search/qrels/dev.tsv", [HEADER, ("q4", "d4", 1), ("q5", "d2", 1)])
    dataset = read_dataset("requests", benchmark, tmp_path, "write it", Rejects())
    assert isinstance(dataset, Dataset)
    # Fused systems cannot score linear models, which need no such split.
    changes = {"protocol": "classification_linear", "probe": {"costs": [1.0]}}
    linear = Benchmark(**{**benchmark.model_dump(), **changes, "metrics": ["macro_f1"]})
    dev = read_dev_sets({"requests": benchmark, "linear": linear}, tmp_path, "dev")
    assert dev["requests"].dataset.query_ids == ["q4", "q5"]
    members: list[System] = [BM25System(), DenseSystem(WordEncoder("cosine"))]
    system = FusedSystem("hybrid", members, "weights", dev)
    assert system.describe()["dev"] == "dev"
    # The weight depends on these files: a score is kept only while they stay.
    known = system.describe()["sha256"]["requests"]
    assert known["dev.tsv"] == sha256(tmp_path / "search/qrels/dev.tsv")
    assert known.keys() == {"corpus.jsonl", "queries.jsonl", "dev.tsv"}
    places_C = places_of(np.argsort(dataset.candidate_ids)[::-1])

    def fused(of: Dataset, share: float) -> Ranking:
        runs = [member.ranker(of).search(1000) for member in members]
        return fuse(runs, [scaled_scores(run) for run in runs], [share, 1 - share], places_C)

    on_dev = dev["requests"].dataset
    scores = [
        compute("ndcg@10", judge(fused(on_dev, share), on_dev.qrels)).mean()
        for share in np.linspace(0, 1, 21)
    ]
    assert len(set(scores)) > 1
    expected = fused(dataset, float(np.linspace(0, 1, 21)[int(np.argmax(scores))]))
    found = system.ranker(dataset).search(3)
    np.testing.assert_array_equal(found.rows_QK, expected.rows_QK[:, :3])
    with pytest.raises(DataError, match="fuse without dev="):
        read_dev_sets({"requests": benchmark}, tmp_path, "val")
    check_apart(dev["requests"], dataset)
    # Where the suite names the file of judgments, every split is this one.
    named = benchmark.model_copy(update={"judgments": "qrels/test.tsv"})
    same = read_dev_sets({"requests": named}, tmp_path, "dev")["requests"]
    with pytest.raises(DataError, match=r"requests.dev has judgments of requests.*'q1', 'd1'"):
        check_apart(same, dataset)


def test_no_weight_is_chosen_where_reviewers_are_judged(dataset: Dataset) -> None:
    """Their papers have no grades, so every weight would be as good as the first, 0."""
    few = Ragged.from_lists([[0, 1], [2], [0]])
    judged = Qrels(few, Ragged.from_lists([[1, 0], [3], [2]]), candidates=3)
    reviewed = replace(dataset, lists=few, reviewers=Reviewers(["a", "b", "c"], few, judged))
    system = FusedSystem("hybrid", [BM25System(), DenseSystem(WordEncoder())], "weights")
    with pytest.raises(DataError, match="judges reviewers, not papers. Fix: fuse by rank"):
        system.ranker(reviewed).rank_listed(few)


def test_reviewers_papers_are_reranked_all_or_not_at_all(dataset: Dataset, tmp_path: Path) -> None:
    """A reviewer's score is a mean of scores; those below the top say only an order."""
    few = Ragged.from_lists([[0, 1], [2], [0]])
    papers = Ragged.from_lists([[0, 1, 2], [2], [0, 1]])
    judged = Qrels(few, Ragged.from_lists([[1, 0], [3], [2]]), candidates=3)
    reviewed = replace(dataset, lists=papers, reviewers=Reviewers(["a", "b", "c"], few, judged))
    model = save_cross_encoder(tmp_path / "cross")
    with pytest.raises(DataError, match=r"requests averages scores .*Fix: .* top=3"):
        RerankedSystem("better", BM25System(), model, top=2).ranker(reviewed).rank_listed(papers)
    whole = RerankedSystem("better", BM25System(), model, top=3).ranker(reviewed)
    assert (whole.rank_listed(papers).rows_QK >= 0).sum() == 6


def test_halves_need_two_queries() -> None:
    with pytest.raises(DataError, match="fuse by rank"):
        halves(["q1"])


def test_reranking_equals_the_cross_encoders_own(dataset: Dataset, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder
    from torch.nn import Identity

    model = save_cross_encoder(tmp_path / "cross")
    system = RerankedSystem("better", BM25System(), model, top=2)
    assert system.describe()["first"]["BM25"]["kind"] == "bm25"
    first = BM25System().ranker(dataset).search(5)
    found = system.ranker(dataset).search(5)
    peer = CrossEncoder(str(model), activation_fn=Identity())
    for query, text in enumerate(dataset.queries):
        rows = [row for row in first.rows_QK[query].tolist() if row >= 0]
        top = [dataset.candidates[row].joined for row in rows[:2]]
        ranked = peer.rank(text.joined, top)
        expected = [rows[int(hit["corpus_id"])] for hit in ranked] + rows[2:]
        assert [row for row in found.rows_QK[query].tolist() if row >= 0] == expected
        scores = found.scores_QK[query, : len(rows)]
        assert (np.diff(scores) < 0).all()
        np.testing.assert_allclose(
            scores[: len(top)], [hit["score"] for hit in ranked], rtol=0, atol=1e-5
        )


def test_members_that_do_not_know_a_task_take_the_fallback(tmp_path: Path) -> None:
    """As they do alone; a member that encodes nothing has no say."""
    words = DenseSystem(WordEncoder("cosine"))
    assert FusedSystem("hybrid", [BM25System(), words]).task_for("rare", "search") == "search"
    assert FusedSystem("hybrid", [BM25System()] * 2).task_for("rare", "search") is None
    reranked = RerankedSystem("better", words, save_cross_encoder(tmp_path / "cross"))
    assert reranked.task_for("rare", "search") == "search"


def test_a_text_encoder_is_no_cross_encoder(tmp_path: Path) -> None:
    """sentence-transformers gives it a random head, whose scores differ from call to call."""
    model = save_cross_encoder(tmp_path / "cross")
    BertForSequenceClassification.from_pretrained(model).bert.save_pretrained(tmp_path / "text")
    shutil.copy(model / "tokenizer.json", tmp_path / "text")
    with pytest.raises(ConfigError, match="no cross-encoder.*Fix: name a cross-encoder"):
        RerankedSystem("better", BM25System(), tmp_path / "text")


def test_a_cross_encoder_has_one_score(tmp_path: Path) -> None:
    model = save_cross_encoder(tmp_path / "cross", labels=3)
    with pytest.raises(ConfigError, match="3 scores per pair"):
        RerankedSystem("better", BM25System(), model)
