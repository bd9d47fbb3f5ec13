"""Indexes of candidates: cached, reused, and with ample effort as good as exact search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from scimult.data.text_store import TextStore
from scimult.preparation.dataset import build_dataset
from scimult.preparation.mining import rules
from scimult.preparation.mining.config import MiningConfig, SearchConfig
from scimult.preparation.mining.indexes import Indexes
from scimult.preparation.steps import Steps
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.coded import LEAST, CodedIndex
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.pruned_bm25 import PrunedBM25Index
from scimult.types import FloatArray, IntArray, Text
from tests.preparation.mining.test_dense import _Hashes
from tests.prepared_folders import write_texts
from tests.raw_corpus import raw_config

N = 60
AMPLE = {
    "bm25": {"exact_below": 1, "postings": 1 << 40, "spare": 1000},
    "dense": {"exact_below": 1, "spare": 1000},
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextStore:
    texts = {
        f"a:{row:02}": Text("paper", f"word{row % 7} word{row % 5}", f"only{row}")
        for row in range(N)
    }
    return write_texts(tmp_path_factory.mktemp("texts"), texts)


def test_an_index_is_reused_until_an_input_changes(texts: TextStore, tmp_path: Path) -> None:
    steps, rows = Steps(tmp_path / "steps"), np.arange(N, dtype=np.int64)
    vectors = np.random.default_rng(0).standard_normal((N, 8)).astype(np.float32)
    config = SearchConfig.model_validate(AMPLE)

    def made(rows: Any, vectors: Any) -> list[int]:
        indexes = Indexes(texts, config, steps)
        assert isinstance(indexes.bm25("a.papers", rows), PrunedBM25Index)
        assert isinstance(indexes.dense("a", rows, vectors, "dot"), CodedIndex)
        files = ("index.bm25.a.papers/words.txt", "index.dense.a/codes.faiss")
        return [(steps.folder / file).stat().st_mtime_ns for file in files]

    first = made(rows, vectors)
    assert made(rows, vectors) == first
    fewer = made(rows[1:], vectors[1:])
    assert fewer[0] != first[0]
    assert fewer[1] != first[1]
    moved = vectors[1:].copy()
    moved[3, 3] += 1
    again = made(rows[1:], moved)
    assert again[0] == fewer[0]
    assert again[1] != fewer[1]


def test_few_candidates_are_searched_exactly(texts: TextStore, tmp_path: Path) -> None:
    rows = np.arange(N, dtype=np.int64)
    indexes = Indexes(texts, SearchConfig(), Steps(tmp_path / "steps"))
    assert isinstance(indexes.bm25("a.papers", rows), BM25Index)
    assert isinstance(indexes.dense("a", rows, np.ones((N, 2), np.float32), "l2"), ExactIndex)
    # Codes need sixteen vectors, however few the configuration allows.
    indexes = Indexes(texts, SearchConfig.model_validate(AMPLE), Steps(tmp_path / "steps"))
    few = np.random.default_rng(0).standard_normal((LEAST, 8)).astype(np.float32)
    assert isinstance(indexes.dense("a", rows[: LEAST - 1], few[1:], "l2"), ExactIndex)
    assert not (tmp_path / "steps").exists()
    assert isinstance(indexes.dense("a", rows[:LEAST], few, "l2"), CodedIndex)


@pytest.mark.long
def test_pools_of_an_ample_search_are_those_of_the_exact_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Papers with the same neighbours tie in the embedding, and rounding orders them.
    monkeypatch.setattr(rules, "citation_embedding", _without_ties)
    papers = [
        {"rule": "bm25", "ranks": [0, 5]},
        {"rule": "dense", "model": "m", "ranks": [1, 4]},
        {"rule": "citation_band", "ranks": [1, 3], "margin": 0.1},
    ]

    def pools(search: dict[str, Any]) -> list[list[list[int]]]:
        labels = [{"rule": "bm25", "ranks": [0, 2]}]
        mining = {"citations": papers, "labels": labels, "queries": [], "search": search}
        config = raw_config(root, mining=mining)
        data, _ = build_dataset(
            config, tmp_path / "out", open_encoder=_Hashes, steps=tmp_path / "steps"
        )
        return [[pool.tolist() for pool in file.negatives] for file in data.pairs("train")]

    exact = pools({})
    assert sum(len(pool) for file in exact for pool in file) > 0
    assert pools(AMPLE) == exact
    for kind in ("bm25.*.papers", "bm25.*.labels", "dense.citations.*", "dense.*"):
        assert list((tmp_path / "steps").glob(f"index.{kind}")), kind


def _without_ties(edges: IntArray, **_: int) -> tuple[IntArray, FloatArray]:
    papers_N = np.unique(edges)
    drawn_ND = np.random.default_rng(0).standard_normal((len(papers_N), 8))
    return papers_N, unit_rows(drawn_ND.astype(np.float32))


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match=r"probes \(64\) exceed lists \(32\)"):
        MiningConfig.model_validate({"search": {"dense": {"lists": 32, "probes": 64}}})
    with pytest.raises(ValidationError):
        MiningConfig.model_validate({"search": {"bm25": {"probes": 1}}})
