from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.inference.cache import EmbeddingCache, encode_collection
from scimult.inference.collection import Collection
from scimult.retrieval.embeddings import write_embeddings
from scimult.types import Text
from tests.tiny import save_tiny_model

PAPERS = Collection(
    Path("papers.jsonl"),
    ["b", "a", "ü\u2028c"],
    [Text("paper", "Graphs", "Drawn"), Text("paper", "Trees"), Text("paper", "", "Forests")],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SciMult:
    return SciMult.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_the_key_distinguishes_every_difference(tmp_path: Path, model: SciMult) -> None:
    cache = EmbeddingCache(tmp_path, 10_000)
    swapped = replace(PAPERS, ids=["a", "b", PAPERS.ids[2]])
    moved = replace(PAPERS, texts=[Text("paper", "GraphsDrawn"), *PAPERS.texts[1:]])
    elsewhere = replace(PAPERS, path=Path("elsewhere.jsonl"))
    for collection, entries in ((PAPERS, 1), (swapped, 2), (moved, 3), (elsewhere, 3)):
        encode_collection(model, collection, task="search", role="candidate", cache=cache)
        assert len(list(tmp_path.iterdir())) == entries
    encode_collection(model, PAPERS, task="link_prediction", role="candidate", cache=cache)
    assert len(list(tmp_path.iterdir())) == 4


def test_the_cache_spares_the_second_encoding(
    tmp_path: Path, model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(role: str = "candidate") -> np.ndarray:
        cache = EmbeddingCache(tmp_path, 10_000)
        return encode_collection(model, PAPERS, task="link_prediction", role=role, cache=cache)  # type: ignore[arg-type]

    first_ND = encode()
    with monkeypatch.context() as context:
        context.setattr(SciMult, "encode", lambda *_, **__: pytest.fail("encoded again"))
        np.testing.assert_array_equal(encode(), first_ND)
    encode("query")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_cache_nothing_is_written(tmp_path: Path, model: SciMult) -> None:
    encode_collection(model, PAPERS, task="search", role="candidate", cache=None)
    assert list(tmp_path.iterdir()) == []


def test_embeddings_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    rows = np.array([[0.0, 1.0], [np.nan, 1.0], [np.inf, 1.0]], dtype=np.float32)
    with pytest.raises(DataError, match=r"2 of 3 embeddings by m are not.*'row 1'"):
        write_embeddings(tmp_path / "e", ["a", "b", "c"], rows, {"model_name": "m"})
    assert not list(tmp_path.iterdir())


def test_papers_on_the_side_of_labels_are_refused(model: SciMult) -> None:
    with pytest.raises(DataError, match="candidate of task 'classification' is a label"):
        encode_collection(model, PAPERS, task="classification", role="candidate", cache=None)
