"""BM25 over truncated lists: untruncated equals naive sums, bm25s and the exact index."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.retrieval import pruned_bm25
from scimult.retrieval.analysis import WORDS
from scimult.retrieval.bm25 import K1, B, BM25Index
from scimult.retrieval.pruned_bm25 import Effort, PrunedBM25Index, write_pruned_bm25

ALL = Effort(postings=1 << 40, overfetch=1, spare=1 << 20)
TEXTS = st.lists(
    st.lists(st.sampled_from(["aa", "bb", "cc", "dd", "ee", "x"]), max_size=8).map(" ".join),
    min_size=1,
    max_size=12,
)


def index_of(texts: Sequence[str], folder: Path, longest: int, effort: Effort) -> PrunedBM25Index:
    ids = [f"{row:03}" for row in range(len(texts))]
    blocks = (texts[start : start + 5] for start in range(0, len(texts), 5))
    write_pruned_bm25(folder, ids, blocks, longest=longest)
    return PrunedBM25Index(folder, effort=effort)


def naive(texts: Sequence[str], query: str) -> list[float]:
    """Return Lucene's BM25 of every text, by its formula."""
    words = [[word for word in text.split() if len(word) > 1] for text in texts]
    average = sum(map(len, words)) / len(words)
    scores = []
    for own in words:
        total = 0.0
        for word in query.split():
            df, tf = sum(word in other for other in words), own.count(word)
            idf = np.log(1 + (len(words) - df + 0.5) / (df + 0.5))
            total += idf * tf / (tf + K1 * (1 - B + B * len(own) / average)) if tf else 0.0
        scores.append(total)
    return scores


@pytest.mark.long
@settings(max_examples=40)
@given(texts=TEXTS, queries=TEXTS, k=st.integers(1, 12), block=st.sampled_from([1, 3, 1 << 24]))
def test_untruncated_it_is_bm25(texts: list[str], queries: list[str], k: int, block: int) -> None:
    if not any(len(word) > 1 for text in texts for word in text.split()):
        return
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruned_bm25, "_SORTED", block)
        index = index_of(texts, Path(folder), len(texts), ALL)
        exact = BM25Index([f"{row:03}" for row in range(len(texts))], texts)
        excluded = np.arange(len(queries)) % (len(texts) + 1) - 1
        found = index.search(queries, k, exclude_Q=excluded)
        expected = exact.search(queries, k, exclude_Q=excluded)
        # float32 weights and sums: 1e-6 of a score.
        np.testing.assert_allclose(found.scores_QK, expected.scores_QK, rtol=2e-6)
        for query, text in enumerate(queries):
            scores = naive(texts, text)
            for row, score in zip(found.rows_QK[query], found.scores_QK[query], strict=True):
                if row >= 0:
                    assert score == pytest.approx(scores[row], rel=2e-6)
                    assert row != excluded[query]
        lists = Ragged.from_lists([range(len(texts))] * len(queries))
        of_all = index.rank_listed(queries, lists)
        np.testing.assert_allclose(
            of_all.scores_QK, exact.rank_listed(queries, lists).scores_QK, rtol=2e-6
        )


def zipf_texts(count: int, seed: int) -> list[str]:
    """Return texts of 60 words, a third of them on one of forty subjects."""
    rng = np.random.default_rng(seed)
    common = np.minimum(rng.zipf(1.2, (count, 40)), 5000)
    subject = rng.integers(0, 40, (count, 1)) * 200
    own = 10_000 + subject + np.minimum(rng.zipf(1.4, (count, 20)), 199)
    return [" ".join(f"w{word}" for word in row) for row in np.hstack([common, own])]


def test_weights_are_those_of_bm25s(tmp_path: Path) -> None:
    texts = zipf_texts(300, 0)
    index = index_of(texts, tmp_path, 300, ALL)
    peer = bm25s.BM25(method="lucene", k1=K1, b=B)
    peer.index(WORDS(texts), show_progress=False)
    query = texts[7]
    lists = Ragged.from_lists([range(300)])
    ours = index.rank_listed([query], lists)
    theirs = peer.get_scores(WORDS([query])[0])
    np.testing.assert_allclose(ours.scores_QK[0], theirs[ours.rows_QK[0]], rtol=1e-5)


@pytest.mark.long
def test_truncated_lists_find_nearly_all_and_scan_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = zipf_texts(4000, 1)
    monkeypatch.setattr(pruned_bm25, "_SORTED", 5000)
    effort = Effort(postings=10_000, overfetch=5, spare=100)
    index = index_of(texts, tmp_path, 500, effort)
    postings = Counter(word for text in texts for word in set(text.split()))
    assert index._lengths_V.max() == 500 < max(postings.values())
    asked = np.arange(0, 4000, 40)
    queries = [texts[row] for row in asked]
    exact = BM25Index([f"{row:03}" for row in range(4000)], texts)
    expected = exact.search(queries, 50, exclude_Q=asked)
    found = index.search(queries, 50, exclude_Q=asked)
    assert index.search(queries, 0).rows_QK.shape == exact.search(queries, 0).rows_QK.shape
    shares = [np.isin(a, b).mean() for a, b in zip(expected.rows_QK, found.rows_QK, strict=True)]
    assert np.mean(shares) > 0.9
    # Results have the score of the whole query.
    for row, (rows, scores) in enumerate(zip(found.rows_QK, found.scores_QK, strict=True)):
        lists = Ragged.from_lists([rows])
        whole = exact.rank_listed([queries[row]], lists)
        np.testing.assert_allclose(scores, whole.scores_QK[0], rtol=1e-5)
    worked = [index._weightiest(*words) for words in index._word_counts(queries)]
    assert max(index._lengths_V[words].sum() for words, _ in worked) <= 10_000 + 500


def test_bad_input_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="words of candidates"):
        write_pruned_bm25(tmp_path, ["a"], [["x"]], longest=1)
    with pytest.raises(DataError, match="2 candidate ids for 1 texts"):
        write_pruned_bm25(tmp_path, ["a", "b"], [["xx"]], longest=1)


@pytest.mark.long
@pytest.mark.data
def test_windows_of_real_papers_are_those_of_the_exact_index(
    scimult_data: Path, tmp_path: Path
) -> None:
    path = scimult_data / "train" / "acl" / "papers.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        papers = [json.loads(line) for line in file]
    texts = [f"{paper['title']} {paper['abstract']}" for paper in papers]
    ids = [paper["id"] for paper in papers]
    write_pruned_bm25(tmp_path, ids, [texts], longest=len(texts))
    asked = np.arange(0, len(texts), 150)
    queries = [texts[row] for row in asked]
    exact = BM25Index(ids, texts).search(queries, 120, exclude_Q=asked)
    for effort, least in ((ALL, 1.0), (Effort(20_000, 10, 500), 0.9)):
        found = PrunedBM25Index(tmp_path, effort=effort).search(queries, 120, exclude_Q=asked)
        shares = []
        for query in range(len(asked)):
            scores = exact.scores_QK[query]
            # Truncating between scores that float32 sums cannot tell apart proves nothing.
            if min(scores[19] - scores[20], scores[98] - scores[99]) < 1e-4:
                continue
            window = exact.rows_QK[query, 20:99]
            shares.append(np.isin(window, found.rows_QK[query, 20:99]).mean())
        assert len(shares) > 40
        assert np.mean(shares) >= least
