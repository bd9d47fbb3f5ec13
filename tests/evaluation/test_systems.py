"""Systems: encode once, stored embeddings, and invalid output of encoders."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.growing import GrowingResult
from scimult.evaluation.results import save_result
from scimult.evaluation.systems import BM25System, DenseSystem, EmbeddingSystem, StoredSystem
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.inference import SciMult
from scimult.retrieval.embeddings import write_embeddings
from scimult.retrieval.runs import Ranking
from scimult.retrieval.shards import publish, write_shard
from scimult.retrieval.space import Space
from scimult.types import FloatArray, Similarity, Text
from tests.benchmark_sets import WordEncoder, write_links, write_rerank, write_search
from tests.tiny import save_tiny_model


@pytest.fixture
def links(tmp_path: Path) -> Dataset:
    return read_dataset("links", write_links(tmp_path), tmp_path, "", Rejects())


@pytest.fixture
def search(tmp_path: Path) -> Dataset:
    return read_dataset("search", write_search(tmp_path), tmp_path, "", Rejects())


def _assert_same(left: Ranking, right: Ranking) -> None:
    assert np.array_equal(left.rows_QK, right.rows_QK)
    assert np.array_equal(left.scores_QK, right.scores_QK)


def test_each_text_of_a_task_and_role_is_encoded_once(tmp_path: Path, search: Dataset) -> None:
    encoder = WordEncoder()
    system = DenseSystem(encoder)
    sets = [
        read_dataset("rerank", write_rerank(tmp_path), tmp_path, "", Rejects()),
        read_dataset("links", write_links(tmp_path), tmp_path, "", Rejects()),
        search,
    ]
    cached = [system.ranker(data).search(5) for data in (*sets, *sets)]
    assert len(encoder.encoded) == len(set(encoder.encoded))
    assert len(encoder.encoded) == 2 * 5 + 3 + 3
    for data, ranking in zip((*sets, *sets), cached, strict=True):
        _assert_same(ranking, DenseSystem(WordEncoder()).ranker(data).search(5))


def test_stored_embeddings_rank_as_the_encoder_that_made_them(
    tmp_path: Path, links: Dataset
) -> None:
    encoder = WordEncoder("cosine")
    folder = tmp_path / "stored/links"
    folder.mkdir(parents=True)
    for name, ids, texts in (
        ("queries", links.query_ids, links.queries),
        ("candidates", links.candidate_ids, links.candidates),
    ):
        rows = np.random.default_rng(0).permutation(len(ids))
        embeddings = encoder.encode(texts, task="search", role="query")[rows]
        write_embeddings(folder / name, np.array(ids)[rows].tolist(), embeddings, {})
    stored = StoredSystem("mine", tmp_path / "stored", "cosine")
    _assert_same(stored.ranker(links).search(5), DenseSystem(encoder).ranker(links).search(5))
    described = stored.describe()
    assert described["similarity"] == "cosine"
    assert set(described["sha256"]) == {
        f"links/{side}/{file}"
        for side in ("queries", "candidates")
        for file in ("embeddings.npy", "ids.txt")
    }


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_stored_embeddings_are_compared_as_their_model_does(
    tmp_path: Path, links: Dataset, similarity: Similarity
) -> None:
    encoder, folder = WordEncoder(similarity), tmp_path / "stored/links"
    queries_QD = encoder.encode(links.queries, task="search", role="query")
    candidates_CD = encoder.encode(links.candidates, task="search", role="candidate")
    meta = {"similarity": similarity}
    write_embeddings(folder / "candidates", links.candidate_ids, candidates_CD, meta)
    (folder / "queries").mkdir()
    space = Space(queries_QD.shape[1], similarity)
    publish(
        folder / "queries",
        space,
        [write_shard(folder / "queries", 0, space, links.query_ids, queries_QD)],
    )
    found = StoredSystem("mine", tmp_path / "stored").ranker(links).search(5)
    _assert_same(found, DenseSystem(encoder).ranker(links).search(5))
    assert StoredSystem("mine", tmp_path / "stored", "dot").similarity == "dot"
    write_embeddings(tmp_path / "stored/other/queries", ["q"], queries_QD[:1], {})
    assert StoredSystem("mine", tmp_path / "stored").similarity == similarity
    write_embeddings(tmp_path / "stored/other/papers", ["p"], queries_QD[:1], {"similarity": "dot"})
    both = re.escape(str(sorted([similarity, "dot"])))
    with pytest.raises(DataError, match=f"stored: .*{both}"):
        StoredSystem("mine", tmp_path / "stored")


def test_stored_embeddings_must_hold_every_id(tmp_path: Path, links: Dataset) -> None:
    ids = ["other", *links.query_ids[1:]]
    write_embeddings(tmp_path / "links/queries", ids, np.zeros((len(ids), 3), np.float32), {})
    with pytest.raises(DataError, match=rf"queries: 1 of {len(ids)} ids have no embedding"):
        StoredSystem("mine", tmp_path, "dot").ranker(links)
    with pytest.raises(DataError, match="folder of embeddings does not exist"):
        StoredSystem("mine", tmp_path / "nowhere", "dot").ranker(links)


def test_embeddings_with_other_ids_are_another_system(tmp_path: Path) -> None:
    """Swapped ids give other scores: --resume must not keep those before."""
    folder = tmp_path / "links/candidates"
    write_embeddings(folder, ["a", "b"], np.eye(2, dtype=np.float32), {})
    system = StoredSystem("mine", tmp_path, "dot")
    before = system.describe()
    assert before == system.describe()
    (folder / "ids.txt").write_text("b\na\n", encoding="utf-8")
    suite = {"name": "own", "benchmarks": {}}
    save_result(GrowingResult("mine", before, suite, tmp_path / "out").result, tmp_path / "out")
    with pytest.raises(ConfigError, match="existing result of mine differs in sha256"):
        GrowingResult("mine", system.describe(), suite, tmp_path / "out", "resume")


def test_stored_embeddings_of_papers_come_by_id(tmp_path: Path) -> None:
    """A linear model gets the rows of its papers, in whatever order the file has them."""
    ids = ["a", "b", "c"]
    texts = [Text("paper", name) for name in ids]
    rows = np.arange(3)
    papers = PaperSet("set", "search", ids, texts, rows[:2], rows[2:], [["x"]] * 3, rows * 1.0)
    stored = np.eye(3, dtype=np.float32)
    write_embeddings(tmp_path / "set/papers", ["c", "a", "b"], stored, {})
    system = StoredSystem("mine", tmp_path, "dot")
    assert isinstance(system, EmbeddingSystem)
    assert system.paper_embeddings(papers).tolist() == stored[[1, 2, 0]].tolist()
    assert not isinstance(BM25System(), EmbeddingSystem)


class _Broken(WordEncoder):
    def encode(self, *args: object, **kwargs: object) -> FloatArray:
        return super().encode(*args, **kwargs)[1:]  # type: ignore[arg-type]


class _NotANumber(WordEncoder):
    def encode(self, *args: object, **kwargs: object) -> FloatArray:
        return super().encode(*args, **kwargs) * np.float32("nan")  # type: ignore[arg-type]


def test_a_cosine_model_gives_unit_vectors_to_linear_models_and_distances(
    tmp_path: Path, links: Dataset
) -> None:
    folder = save_tiny_model(tmp_path / "m", similarity="cosine")
    ids, none = links.candidate_ids, np.empty(0, dtype=np.int64)
    papers = PaperSet("links", "link_prediction", ids, links.candidates, none, none, [], none)
    angles = DenseSystem(SciMult.from_pretrained(folder, device="cpu"))
    raw = DenseSystem(SciMult.from_pretrained(folder, device="cpu", normalise=False))
    assert np.allclose(np.linalg.norm(angles.paper_embeddings(papers), axis=1), 1, atol=1e-6)
    assert not np.allclose(np.linalg.norm(raw.paper_embeddings(papers), axis=1), 1, atol=1e-2)
    by_distance = angles.ranker(replace(links, similarity="l2")).search(9)
    assert np.array_equal(by_distance.rows_QK, angles.ranker(links).search(9).rows_QK)


def test_stored_embeddings_compared_by_cosine_are_scaled_for_distances_and_linear_models(
    tmp_path: Path, links: Dataset
) -> None:
    by_distance = replace(links, similarity="l2")
    ids = links.candidate_ids
    none = np.empty(0, dtype=np.int64)
    papers = PaperSet("links", "search", ids, links.candidates, none, none, [], none)
    draw = np.random.default_rng(0)
    for side, ids in (
        ("queries", links.query_ids),
        ("candidates", links.candidate_ids),
        ("papers", links.candidate_ids),
    ):
        rows = draw.normal(size=(len(ids), 4)) * draw.uniform(1, 9, size=(len(ids), 1))
        write_embeddings(tmp_path / "links" / side, ids, rows.astype(np.float32), {})
    angles = StoredSystem("mine", tmp_path, "cosine")
    raw = StoredSystem("mine", tmp_path, "cosine", normalise=False)
    np.testing.assert_allclose(
        np.linalg.norm(angles.paper_embeddings(papers), axis=1), 1, rtol=1e-6
    )
    assert np.linalg.norm(raw.paper_embeddings(papers), axis=1).max() > 2
    # Between unit vectors the order by distance is the order by cosine.
    found = angles.ranker(by_distance).search(9).rows_QK
    assert np.array_equal(found, angles.ranker(links).search(9).rows_QK)
    assert not np.array_equal(found, raw.ranker(by_distance).search(9).rows_QK)


def test_an_encoder_that_loses_rows_or_returns_nan(links: Dataset) -> None:
    with pytest.raises(DataError, match=r"words returned embeddings of shape \(2, 16\) for 3"):
        DenseSystem(_Broken()).ranker(links)
    with pytest.raises(DataError, match=r"3 of 3 embeddings by words are not finite"):
        DenseSystem(_NotANumber()).ranker(links)


class _Converting(WordEncoder):
    def __init__(self, convert: Callable[[FloatArray], object]) -> None:
        super().__init__()
        self._convert = convert

    def encode(self, *args: object, **kwargs: object) -> FloatArray:
        return self._convert(super().encode(*args, **kwargs))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("form", ["list", "rows", "tensor", "float64"])
def test_an_encoder_may_return_whatever_numpy_reads(links: Dataset, form: str) -> None:
    forms: dict[str, Callable[[FloatArray], object]] = {
        "list": lambda x_ND: x_ND.tolist(),
        "rows": list,
        "tensor": torch.from_numpy,
        "float64": lambda x_ND: x_ND.astype(np.float64),
    }
    found = DenseSystem(_Converting(forms[form])).ranker(links).search(5)
    _assert_same(found, DenseSystem(WordEncoder()).ranker(links).search(5))


@pytest.mark.parametrize("form", ["graph", "bfloat16", "objects", "complex"])
def test_an_encoder_that_returns_no_array_is_named(links: Dataset, form: str) -> None:
    forms: dict[str, Callable[[FloatArray], object]] = {
        "graph": lambda x_ND: torch.from_numpy(x_ND).requires_grad_(),
        "bfloat16": lambda x_ND: torch.from_numpy(x_ND).bfloat16(),
        "objects": lambda x_ND: x_ND.astype(object),
        "complex": lambda x_ND: x_ND.astype(np.complex64),
    }
    with pytest.raises(DataError, match="words did not return an array of real numbers.*Fix: "):
        DenseSystem(_Converting(forms[form])).ranker(links)


def test_stored_embeddings_are_finite_and_of_one_width(tmp_path: Path, links: Dataset) -> None:
    """Messages name the folder and the id: several systems may be scored in one call."""
    queries, candidates = tmp_path / "links/queries", tmp_path / "links/candidates"
    count = len(links.candidate_ids)
    write_embeddings(queries, links.query_ids, np.ones((len(links.query_ids), 3), np.float32), {})
    write_embeddings(candidates, links.candidate_ids, np.ones((count, 4), np.float32), {})
    with pytest.raises(DataError, match=r"links: queries and candidates differ in width .*3, 4"):
        StoredSystem("mine", tmp_path, "dot").ranker(links)
    values = np.ones((count, 3), np.float32)
    values[1, 2] = np.nan
    np.save(candidates / "embeddings.npy", values)
    wanted = rf"candidates: 1 of {count} embeddings are not finite .*{links.candidate_ids[1]}"
    with pytest.raises(DataError, match=wanted):
        StoredSystem("mine", tmp_path, "dot").ranker(links)


def test_bm25_counts_words_of_title_and_body() -> None:
    assert Text("label", "Proteins", "folding").joined == "Proteins folding"
    assert Text("query", "water").joined == "water"
    assert BM25System().describe()["k1"] == 0.9
