"""Windows of a ranking, margins and the cross-encoder's veto, against plain sorting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError, DataError
from scimult.preparation.mining.dense import CrossEncoderVeto
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.ranked import RankWindow, encode_to_file, look_up
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.cross_encoder import load_cross_encoder
from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray, IntArray, Role, Similarity, Text
from tests.prepared_folders import write_texts
from tests.tiny import save_cross_encoder

N = 12
CANDIDATES = np.arange(3, N, dtype=np.int64)
ROWS = st.lists(st.integers(0, N - 1), min_size=1, max_size=8)


def _groups(queries: list[int], seed: int) -> Groups:
    rng = np.random.default_rng(seed)
    positives = [rng.choice(CANDIDATES, size=rng.integers(0, 3), replace=False) for _ in queries]
    return Groups(np.array(queries, dtype=np.int64), Ragged.from_lists(positives))


@given(
    queries=ROWS,
    band=st.tuples(st.integers(0, 9), st.integers(1, 12)).filter(lambda band: band[0] < band[1]),
    margin=st.one_of(st.none(), st.floats(-2, 2)),
    seed=st.integers(0, 5),
)
def test_a_window_of_an_embedding(
    queries: list[int], band: tuple[int, int], margin: float | None, seed: int
) -> None:
    vectors = np.random.default_rng(seed).standard_normal((N, 4)).astype(np.float32)
    index = ExactIndex([f"{row:02}" for row in CANDIDATES], vectors[CANDIDATES], "dot")
    askable = np.arange(0, N, 2, dtype=np.int64)
    window = RankWindow(
        index, look_up(askable, vectors[askable]), CANDIDATES, range(*band), margin, askable
    )
    groups = _groups(queries, seed)
    for query, positives, found in zip(
        queries, groups.positives, window.candidates(groups), strict=True
    ):
        # The same kernel in float64 would round otherwise at the margin: stay in float32.
        scores = {int(row): np.float32(vectors[query] @ vectors[row]) for row in CANDIDATES}
        ranked = sorted(scores.keys() - {query}, key=lambda row: -scores[row])[slice(*band)]
        lowest = min((scores[int(row)] for row in positives), default=np.float32(-np.inf))
        if query not in askable:
            assert found.tolist() == []
        elif margin is None:
            assert found.tolist() == sorted(ranked)
        else:
            near = 1e-4
            assert {r for r in ranked if scores[r] < lowest - margin - near} <= set(found.tolist())
            assert set(found.tolist()) <= {r for r in ranked if scores[r] < lowest - margin + near}


@pytest.mark.parametrize(("margin", "expected"), [(0, [1, 2, 5]), (1, [2, 5]), (-1, [1, 2, 3, 5])])
def test_a_margin_keeps_what_scores_as_much_as_it_allows(margin: int, expected: list[int]) -> None:
    """The positives 0 and 4 score 2 and 3; the others 2, 1, 3, 1 and 9, exactly."""
    vectors = np.array([[2], [2], [1], [3], [3], [1], [9], [1]], dtype=np.float32)
    rows = np.arange(7, dtype=np.int64)
    index = ExactIndex([str(row) for row in rows], vectors[rows], "dot")
    query = np.arange(8, dtype=np.int64)
    window = RankWindow(index, look_up(query, vectors), rows, range(9), margin)
    groups = Groups(np.array([7]), Ragged.from_lists([[0, 4]]))
    (found,) = window.candidates(groups)
    assert sorted(set(found.tolist()) - {0, 4}) == expected


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextStore:
    shared = [" ".join(["graph"] * (row % 4)) for row in range(N)]
    texts = {
        f"a:{row:02}": Text("paper", f"{shared[row]} word{row % 3}", f"only{row}")
        for row in range(N)
    }
    return write_texts(tmp_path_factory.mktemp("texts"), texts)


def test_a_window_of_bm25_holds_the_next_best(texts: TextStore) -> None:
    def represent(rows: IntArray) -> list[str]:
        return [text.joined for text in texts.texts(rows)]

    rows = np.arange(N, dtype=np.int64)
    groups = _groups(list(range(N)), 0)
    index = BM25Index(texts.ids_at(rows), represent(rows))
    found = RankWindow(index, represent, rows, range(1, 3)).candidates(groups)
    ranking = index.search(represent(rows), 3, exclude_Q=rows)
    for row in range(N):
        expected = [int(place) for place in ranking.rows_QK[row, 1:3] if place >= 0]
        assert found[row].tolist() == sorted(expected)
        assert row not in expected
    assert found.lengths.sum() > 0


class _Lengths:
    """Encodes a text as its length, to check the order of rows and roles."""

    name = "lengths"
    similarity: Similarity = "dot"

    def __init__(self, rows_off: int = 0) -> None:
        self.rows_off = rows_off

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        sizes = [[len(text.joined), role == "query"] for text in texts]
        return np.array(sizes, dtype=np.float32)[self.rows_off :]


def test_encoding_block_by_block(
    texts: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.preparation.mining.ranked.TEXTS_PER_BLOCK", 5)
    rows = np.array([7, 1, 2, 11, 0, 5, 6], dtype=np.int64)
    stored = encode_to_file(_Lengths(), "t", "query", texts, rows, tmp_path / "x.npy")
    assert stored.tolist() == [[len(text.joined), 1] for text in texts.texts(rows)]
    with pytest.raises(DataError, match=r"shape \(4, 2\) for 5 texts"):
        encode_to_file(_Lengths(1), "t", "query", texts, rows, tmp_path / "y.npy")


@given(queries=ROWS, seed=st.integers(0, 5), margin=st.sampled_from([-1.0, 0.0, 2.0]))
def test_a_veto_compares_with_the_lowest_positive(
    texts: TextStore, queries: list[int], seed: int, margin: float
) -> None:
    row_of = {text.joined: row for row, text in enumerate(texts.texts(range(N)))}

    def fit(query: int, row: int) -> int:
        return query * row % 7

    def score(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        return np.array([fit(row_of[a], row_of[b]) for a, b in pairs], dtype=np.float32)

    groups = _groups(queries, seed)
    rng = np.random.default_rng(seed)
    pools = Ragged.from_lists(
        [sorted(rng.choice(N, size=rng.integers(0, 5), replace=False)) for _ in queries]
    )
    kept = CrossEncoderVeto(score, texts, margin).keep(groups, pools)
    for query, positives, pool, rest in zip(queries, groups.positives, pools, kept, strict=True):
        lowest = min((fit(query, row) for row in positives.tolist()), default=np.inf)
        assert rest.tolist() == [r for r in pool.tolist() if fit(query, r) <= lowest - margin]


def test_a_cross_encoder_of_sentence_transformers(tmp_path: Path) -> None:
    score = load_cross_encoder(str(save_cross_encoder(tmp_path / "cross")))
    pairs = [("a graph", "another graph"), ("a graph", "a gene"), ("a graph", "another graph")]
    scores = score(pairs)
    assert scores.shape == (3,)
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert scores[0] != pytest.approx(scores[1], abs=1e-7)
    with pytest.raises(ConfigError, match="cannot load cross-encoder"):
        load_cross_encoder(str(tmp_path / "nothing"))
