"""Searching a library without torch gives the same answers and errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.errors import DataError, SciMultError
from scimult.inference import SciMult
from scimult.inference.query_encoder import QueryEncoder
from scimult.library import Library
from tests.library.conftest import dated
from tests.tiny import save_tiny_model

PAPERS = dated(60)
# For the mean of several seeds, words among them, with BM25 next to it.
REQUESTS: dict[str, dict[str, Any]] = {
    "words": {"text": "graph of tokens"},
    "a page": {"text": "graph of tokens", "k": 7, "offset": 7},
    "a filter": {"text": "protein", "where": "year >= 2004 and venue = 'ACL'"},
    "exclusions": {"text": "protein", "exclude": ["p001", "p002", "p003"], "k": 60},
    "some alone": {"text": "protein", "only": ["p004", "p005", "p006"]},
    "BM25": {"text": "graph of tokens", "words": 0.3, "k": 20},
    "ranks": {"text": "graph of tokens", "words": "rank", "k": 20},
    "percentiles": {"text": "vision", "percentile": True},
    "papers": {"ids": ["p003", "p007"]},
    "papers and words": {"ids": ["p003"], "text": "matrix"},
}


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "library"
    Library.create(folder, PAPERS, model=model_folder, dtype="float32")
    return folder


def _same(folder: Path, request: dict[str, Any], task: str = "search") -> None:
    light, whole = Library.open(folder, light=True), Library.open(folder)
    found, wanted = (one.search(task=task, **request) for one in (light, whole))
    assert found.ids == wanted.ids
    # Embeddings agree to 1e-5, and scores are products of vectors of length 1.
    assert np.allclose(found.scores, wanted.scores, atol=1e-5)
    assert [hit.percentile for hit in found] == [hit.percentile for hit in wanted]
    assert (found.score, found.exact) == (wanted.score, wanted.exact)
    encoder = light._opened.__dict__.get("encoder")
    assert encoder is None or isinstance(encoder, QueryEncoder)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_answers_are_those_of_torch(folder: Path, request_: dict[str, Any]) -> None:
    _same(folder, request_)
    _same(folder, request_, "link_prediction")


def test_a_model_of_the_hub_is_opened_from_its_download(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository, commit = tmp_path / "hub" / "models--org--tiny", "0" * 40
    shutil.copytree(model_folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: _snapshot(repository))
    Library.create(tmp_path / "library", PAPERS[:3], model="org/tiny", dtype="float32")
    light = Library.open(tmp_path / "library", light=True)
    assert len(light.search("graph")) == 3
    assert isinstance(light._opened.encoder, QueryEncoder)
    # Not downloaded, or another edition since: the model is asked for, which can say so.
    shutil.rmtree(repository / "refs")
    light.refresh()
    assert len(light.search("graph")) == 3
    assert isinstance(light._opened.encoder, SciMult)


def _snapshot(repository: Path) -> str:
    (folder,) = (repository / "snapshots").iterdir()
    return str(folder)


def test_all_above_a_score_are_those_of_torch(folder: Path) -> None:
    scores = sorted(Library.open(folder).search("graph of tokens", k=60).scores)
    # Between two scores: one on the threshold may be rounded to either side.
    for place in (10, 30, 59):
        least = (scores[place - 1] + scores[place]) / 2
        if scores[place] - scores[place - 1] > 1e-4:
            _same(folder, {"text": "graph of tokens", "min_score": least})


def test_a_new_paper_is_encoded_alike(folder: Path) -> None:
    paper = {"title": "Kernels of graphs", "abstract": "We study speech."}
    found, wanted = (Library.open(folder, light=x).recommend(**paper) for x in (True, False))
    assert found.ids == wanted.ids
    assert np.allclose(found.scores, wanted.scores, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_library_made_in_another_type_is_searched_in_float32(
    model_folder: Path, tmp_path: Path, dtype: str
) -> None:
    Library.create(tmp_path / "library", PAPERS, model=model_folder, dtype=dtype)
    light, whole = (Library.open(tmp_path / "library", light=x) for x in (True, False))
    queries = [one._opened.queries("search", ["graph of tokens"]) for one in (light, whole)]
    assert isinstance(light._opened.encoder, QueryEncoder)
    # A float32 vector against one of two blocks rounded to 2**-9: at most a hundredth apart.
    assert float((queries[0] * queries[1]).sum()) > 0.99


@pytest.mark.parametrize("variant", ["adapters", "lora", "pals", "instruction"])
def test_models_that_are_not_covered_use_torch(tmp_path: Path, variant: str) -> None:
    model = save_tiny_model(tmp_path / "model", variant=variant, similarity="cosine")
    Library.create(tmp_path / "library", PAPERS[:20], model=model, dtype="float32")
    light, whole = (Library.open(tmp_path / "library", light=x) for x in (True, False))
    found, wanted = light.search("graph of tokens"), whole.search("graph of tokens")
    assert isinstance(light._opened.encoder, SciMult)
    assert (found.ids, found.scores) == (wanted.ids, wanted.scores)


def _message(folder: Path, light: bool, **options: Any) -> str:
    with pytest.raises(SciMultError) as caught:
        Library.open(folder, light=light, **options).search("graph")
    return str(caught.value)


def test_errors_are_those_of_torch(model_folder: Path, tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "library"
    shutil.copytree(model_folder, model)
    Library.create(folder, PAPERS[:20], model=model, dtype="float32")
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    other = save_tiny_model(tmp_path / "other", similarity="cosine", seed=5)

    def same(expected: str, **options: Any) -> None:
        messages = [_message(folder, light, **options) for light in (True, False)]
        assert messages[0] == messages[1]
        assert expected in messages[0]
        assert messages[0].count("Fix:") == 1

    weights.write_bytes(content[: len(content) // 2])
    same("file is damaged or not safetensors")
    weights.write_bytes(content[:-8] + bytes(8))
    same("differ in weights")
    weights.unlink()
    same("no weights here")
    shutil.copy(other / "model.safetensors", weights)
    same("differ in weights")
    same("differ in weights", model=other)
    (model / "config.json").write_text("{}")
    same("config.json is neither ours nor Hugging Face's")
    shutil.rmtree(model)
    same("the library's model is missing")


def test_a_model_and_a_library_that_were_moved(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "first")
    Library.create(tmp_path / "a", PAPERS[:20], model=tmp_path / "first", dtype="float32")
    wanted = Library.open(tmp_path / "a").search("graph").ids
    (tmp_path / "first").rename(tmp_path / "second")
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Library.open(tmp_path / "b", light=True, model=tmp_path / "second")
    assert moved.search("graph").ids == wanted
    assert isinstance(moved._opened.encoder, QueryEncoder)
    # The type that auto stands for here may be another one, for which all would be encoded anew.
    with pytest.raises(DataError, match=r"migrate LIBRARY --model FOLDER --dtype float32$"):
        Library.open(tmp_path / "b").search("graph")
    done = Library.open(tmp_path / "b").migrate(tmp_path / "second", dtype="float32")
    assert done.texts_encoded == 0
    assert Library.open(tmp_path / "b").search("graph").ids == wanted


def test_a_device_a_newer_model_and_an_open_one_use_torch(
    folder: Path, model_folder: Path, model: SciMult, tmp_path: Path
) -> None:
    for options in ({"device": "cpu"}, {"model": model}):
        opened = Library.open(folder, light=True, **options)
        assert isinstance(opened._opened.encoder, SciMult)
    shutil.copytree(folder, tmp_path / "library")
    newer = save_tiny_model(tmp_path / "newer", similarity="cosine", seed=9)
    Library.open(tmp_path / "library").adapt(newer, dtype="float32")
    light, whole = (Library.open(tmp_path / "library", light=x, model=newer) for x in (True, False))
    assert light.search("graph").scores == whole.search("graph").scores
    own = Library.open(tmp_path / "library", light=True)
    own.search("graph")
    assert isinstance(own._opened.encoder, QueryEncoder)
