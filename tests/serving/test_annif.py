"""Annif's own client against our paths."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import requests
from annif_client import AnnifClient

from scimult.library import Library
from scimult.serving.answers import Answers
from scimult.serving.labels import Tags
from scimult.tagging import Tagger
from scimult.types import Similarity
from tests.library.conftest import dated
from tests.serving.conftest import LABELS, Running, running
from tests.tagging.made_up import VOCABULARY, papers
from tests.tiny import save_tiny_model

TEXT = "Graph drawing\nWe lay out large networks."


@pytest.fixture
def client(server: Running) -> AnnifClient:
    return AnnifClient(f"{server.url}/v1/")


def test_projects(client: AnnifClient) -> None:
    assert "SciMult" in client.api_info["title"]
    (project,) = client.projects
    assert client.get_project("labels") == project
    assert project["project_id"] == "labels"
    assert project["language"] == "en"
    assert project["backend"]["backend_id"] == "scimult"
    with pytest.raises(ValueError, match="'yso-en' not found"):
        client.get_project("yso-en")


def test_suggestions_are_the_librarys_tags(client: AnnifClient, server: Running) -> None:
    found = client.suggest("labels", TEXT)
    model = Library.open(server.served.path).model
    title, body = TEXT.split("\n")
    paper = [{"title": title, "abstract": body}]
    (paper_D,) = model.encode(paper, task="classification", role="query")
    labels_CD = model.encode(
        [{k: v for k, v in one.items() if k != "id"} for one in LABELS],
        task="classification",
        role="candidate",
    )
    scores = labels_CD @ paper_D
    order = np.argsort(-scores)
    assert [one["uri"] for one in found] == [LABELS[row]["id"] for row in order]
    assert [one["label"] for one in found] == [LABELS[row]["name"] for row in order]
    np.testing.assert_allclose([one["score"] for one in found], scores[order].clip(0, 1), atol=1e-5)
    assert client.suggest("labels", io.StringIO(TEXT), limit=1) == found[:1]
    threshold = (found[0]["score"] + found[1]["score"]) / 2
    assert client.suggest("labels", TEXT, threshold=threshold) == found[:1]
    assert client.suggest("labels", TEXT, limit=0) == client.suggest("labels", " ") == []
    with pytest.raises(ValueError, match="not found"):
        client.suggest("other", TEXT)


def test_labels_are_encoded_beside_the_event_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a migration the first request encodes all labels again; others must not wait."""
    known, on_loop = Answers.known_tags, []

    def recorded(self: Answers) -> Tags:
        with suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())
        return known(self)

    monkeypatch.setattr(Answers, "known_tags", recorded)
    with running(folder) as server:
        client = AnnifClient(f"{server.url}/v1/")
        assert client.suggest("labels", TEXT)
        assert client.suggest_batch("labels", [{"text": TEXT}])
    assert on_loop == []


@pytest.mark.long
@pytest.mark.parametrize("similarity", ["dot", "l2"])
def test_scores_are_cosines_whatever_the_library_compares_by(
    tmp_path: Path, similarity: Similarity
) -> None:
    folder = save_tiny_model(tmp_path / "model", similarity=similarity)
    Library.create(tmp_path / "library", dated(20), model=folder)
    with running(tmp_path / "library") as server:
        found = AnnifClient(f"{server.url}/v1/").suggest("labels", "Graph drawing")
    model = Library.open(tmp_path / "library").model
    (paper_D,) = model.encode([{"title": "Graph drawing"}], task="classification", role="query")
    names = [{k: v for k, v in one.items() if k != "id"} for one in LABELS]
    labels_CD = model.encode(names, task="classification", role="candidate")
    cosines_C = labels_CD @ paper_D / np.linalg.norm(labels_CD, axis=1) / np.linalg.norm(paper_D)
    order = [row for row in np.argsort(-cosines_C) if cosines_C[row] >= 0]
    assert order
    assert [one["uri"] for one in found] == [LABELS[row]["id"] for row in order]
    np.testing.assert_allclose([one["score"] for one in found], cosines_C[order], atol=1e-5)


def test_a_batch_equals_its_texts_one_by_one(client: AnnifClient) -> None:
    documents = [{"text": TEXT, "document_id": "d1"}, {"text": "vision", "metadata": {"a": "b"}}]
    one, two = client.suggest_batch("labels", documents, limit=2)
    assert (one["document_id"], two["document_id"]) == ("d1", None)
    for batched, text in ((one, TEXT), (two, "vision")):
        alone = client.suggest("labels", text, limit=2)
        assert [s["uri"] for s in batched["results"]] == [s["uri"] for s in alone]
        found, expected = ([s["score"] for s in listed] for listed in (batched["results"], alone))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_requests_that_annif_refuses_are_refused(client: AnnifClient, server: Running) -> None:
    answer = server.post("/v1/projects/labels/suggest", {"text": TEXT})
    assert (answer.status_code, answer.json()["problem"]) == (422, "the body is not a form")
    half = {"documents": [{"text": TEXT, "document_id": "\ud800"}]}
    batch = f"{server.url}/v1/projects/labels/suggest-batch"
    assert requests.post(batch, json=half, timeout=60).status_code == 422
    with pytest.raises(requests.HTTPError, match="422"):
        client.suggest_batch("labels", [{"text": "a"}] * 33)
    with pytest.raises(requests.HTTPError, match="422"):
        client.suggest("labels", TEXT, threshold=2)
    with pytest.raises(requests.HTTPError, match="403"):
        client.learn("labels", [{"text": TEXT, "subjects": [{"uri": "http://example.org/1"}]}])
    with pytest.raises(ValueError, match="'other' not found"):
        client.learn("other", [{"text": TEXT, "subjects": []}])


@pytest.mark.long
def test_a_tagger_answers_as_it_does_alone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under /tag with evidence, and for several concurrent Annif clients without."""
    tagger = Tagger.train(
        tmp_path / "tagger", VOCABULARY, papers(200), model=folder.parent / "model"
    )
    drafts = papers(12)
    expected = tagger.tag([f"{one['title']}" for one in drafts], 3)
    with running(folder, tagger=tmp_path / "tagger") as server, ThreadPoolExecutor(6) as threads:
        client = AnnifClient(f"{server.url}/v1/")
        ask = lambda one: client.suggest("labels", one["title"], limit=3)  # noqa: E731
        with monkeypatch.context() as patched:
            patched.setattr("scimult.tagging.tagger.find_evidence", None)  # its sentences are lost
            found = list(threads.map(ask, drafts))
        # A tagger refuses to suggest none.
        assert client.suggest("labels", TEXT, limit=0) == []
        for suggested, tags in zip(found, expected, strict=True):
            assert [one["uri"] for one in suggested] == [tag.id for tag in tags]
            scores = [tag.score for tag in tags]
            np.testing.assert_allclose([one["score"] for one in suggested], scores, atol=1e-4)
        body = {"papers": [{"title": one["title"]} for one in drafts], "k": 3}
        for one, tags in zip(server.post("/tag", body).json()["papers"], expected, strict=True):
            assert [label["evidence"] for label in one["labels"]] == [tag.evidence for tag in tags]
        unknown = server.post("/tag", {**body, "exclude": ["nothing"]})
        assert unknown.status_code == 422
