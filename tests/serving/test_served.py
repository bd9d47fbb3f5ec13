"""A library that changes while it is served: another model, an unreadable file."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from scimult.cli.serve import followed_labels
from scimult.errors import DataError
from scimult.library import Library
from scimult.library.words import WordIndex
from scimult.serving.answers import Answers
from scimult.serving.app import THREADS, Service
from scimult.serving.batching import DEADLINE
from scimult.serving.schemas import Health, Search
from scimult.serving.served import Served
from scimult.tagging import Tagger, Vocabulary
from scimult.types import Text
from tests.library.conftest import dated, paper, small_library
from tests.serving.conftest import LABELS, Running, running, same_hits
from tests.tagging.made_up import VOCABULARY
from tests.tiny import save_tiny_model
from tests.waiting import wait_until


def _health(server: Running) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{server.url}/health").json()
    return found


def _wait_for(server: Running, name: str, value: object) -> None:
    wait_until(lambda: _health(server)[name] == value)


@pytest.mark.long
def test_another_model_and_a_broken_file(tmp_path: Path) -> None:
    models = [save_tiny_model(tmp_path / f"m{n}", similarity="cosine", seed=n) for n in range(2)]
    Library.create(tmp_path / "library", dated(30), model=models[0])
    file = tmp_path / "library" / "library.json"
    with running(tmp_path / "library") as server:
        before = server.post("/search", {"text": "graph"}).json()
        (former,) = server.served.models
        writer = Library.open(tmp_path / "library")
        writer.migrate(models[1])
        _wait_for(server, "generation", writer.state.manifest.generation)
        found = server.post("/search", {"text": "graph"}).json()
        hits = writer.search("graph")
        assert [one["id"] for one in found["papers"]] == hits.ids
        assert found != before
        for thread in former._passes._threads:
            thread.join(20)
            assert not thread.is_alive()
        # Labels are encoded again, by the new model.
        tagged = server.post("/tag", {"ids": ["p001"], "k": 3}).json()["papers"][0]["labels"]
        (expected,) = writer.tag(LABELS, ids=["p001"], k=3)
        assert [one["id"] for one in tagged] == expected.labels.ids
        scores = [one["score"] for one in tagged]
        np.testing.assert_allclose(scores, expected.labels.scores, atol=1e-5)

        intact = file.read_bytes()
        file.write_bytes(intact[:100])
        _wait_for(server, "status", "stale")
        assert "library.json" not in str(_health(server)["problem"])
        again = server.post("/search", {"text": "graph"}).json()
        assert [one["id"] for one in again["papers"]] == hits.ids
        file.write_bytes(intact)
        _wait_for(server, "status", "ok")
        assert _health(server)["problem"] is None

        # The same file is gone and back, as on a network drive.
        file.rename(file.with_suffix(".away"))
        _wait_for(server, "status", "stale")
        assert "library.json" not in str(_health(server)["problem"])
        file.with_suffix(".away").rename(file)
        _wait_for(server, "status", "ok")


@pytest.mark.long
def test_papers_whose_files_are_gone_are_told(tmp_path: Path) -> None:
    """Searches were refused while ``/health`` said ok."""
    small_library(tmp_path, 30)
    with running(tmp_path / "library") as server:
        (papers,) = (tmp_path / "library" / "papers").iterdir()
        papers.rename(tmp_path / "away")
        _wait_for(server, "status", "damaged")
        assert _health(server)["problem"] == "1 file of papers missing or changed"
        assert server.post("/search", {"text": "graph"}).status_code == 503
        (tmp_path / "away").rename(papers)
        _wait_for(server, "status", "ok")
        assert server.post("/search", {"text": "graph"}).status_code == 200
        writer = Library.open(tmp_path / "library")
        writer.add(dated(40)[30:])
        writer.compact()
        _wait_for(server, "papers", 40)
        assert _health(server)["status"] == "ok"


@pytest.mark.long
def test_a_tagger_keeps_its_passes_when_the_library_changes_its_model(tmp_path: Path) -> None:
    """Each request then encoded alone, with memory of its own, and was not counted."""
    models = [save_tiny_model(tmp_path / f"m{n}", similarity="cosine", seed=n) for n in range(2)]
    Library.create(tmp_path / "library", dated(30), model=models[0])
    tagger = Tagger.train(tmp_path / "tagger", VOCABULARY, model=models[0])
    passes: list[int] = []
    served = Served(tmp_path / "library", observe=lambda texts, tokens: passes.append(texts))
    followed = followed_labels(served, None, tmp_path / "tagger", None, False)
    assert followed is not None
    labels = followed.value
    Library.open(tmp_path / "library").migrate(models[1])
    assert served.follow()
    passes.clear()
    paper = Text("paper", "Deep vision")
    (found,) = labels.suggest([paper], k=3, threshold=None, exclude=(), evidence=False)
    assert [one.id for one in found] == [one.id for one in tagger.tag([paper], 3)[0]]
    assert passes == [1]
    served.close()


@pytest.mark.long
def test_a_tagger_trained_again_is_served(tmp_path: Path) -> None:
    """The service went on with the former one, while the library followed its folder."""
    models = [save_tiny_model(tmp_path / f"m{n}", similarity="cosine", seed=n) for n in range(2)]
    Library.create(tmp_path / "library", dated(30), model=models[0])
    tagger = tmp_path / "tagger"
    Tagger.train(tagger, VOCABULARY, model=models[0])
    earlier = set(threading.enumerate())
    with running(tmp_path / "library", tagger=tagger) as server:
        own = server.served.models
        for model, words in ((models[1], ["Walks", "Trees"]), (models[0], ["Nets", "Trees"])):
            expected = Tagger.train(tagger, Vocabulary(words), model=model)
            _wait_for_labels(server, words)
            tagged = server.post("/tag", {"ids": ["p001"], "k": 2}).json()["papers"][0]["labels"]
            (tags,) = expected.tag(dated(2)[1:], k=2)
            assert [one["id"] for one in tagged] == [tag.id for tag in tags]
            scores = [tag.score for tag in tags]
            np.testing.assert_allclose([one["score"] for one in tagged], scores, atol=1e-5)
        assert server.served.models == own

        file = tagger / "tagger.json"
        intact = file.read_bytes()
        file.write_bytes(b"{}")
        _wait_for(server, "status", "stale")
        assert str(tmp_path) not in str(_health(server)["problem"])
        assert server.post("/tag", {"ids": ["p001"]}).status_code == 200
        file.write_bytes(intact)
        _wait_for(server, "status", "ok")
    for thread in set(threading.enumerate()) - earlier:
        thread.join(20)  # those of requests end soon after the service
        assert not thread.is_alive(), thread.name


@pytest.mark.long
def test_changed_labels_are_served(tmp_path: Path) -> None:
    small_library(tmp_path, 30)
    with running(tmp_path / "library") as server:
        (tmp_path / "labels.jsonl").write_text('{"id": "w", "name": "Walks"}\n')
        _wait_for_labels(server, ["Walks"])


def _wait_for_labels(server: Running, names: list[str]) -> None:
    def tagged() -> list[str]:
        paper = server.post("/tag", {"ids": ["p001"], "k": 9}).json()["papers"][0]
        return sorted(one["name"] for one in paper["labels"])

    wait_until(lambda: tagged() == sorted(names))


@pytest.mark.long
def test_the_first_index_of_words_holds_up_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small_library(tmp_path, 12, "float32")
    release, build = threading.Event(), WordIndex._build

    def slow(index: WordIndex) -> Any:
        assert release.wait(60)
        return build(index)

    monkeypatch.setattr(WordIndex, "_build", slow)
    limits = httpx.Limits(max_connections=99)
    with (
        running(library.path) as server,
        httpx.Client(base_url=server.url, timeout=60, limits=limits) as client,
        ThreadPoolExecutor(THREADS + 8) as threads,
    ):
        body = {"text": "graph", "words": 0.5}
        waiting = [threads.submit(client.post, "/search", json=body) for _ in range(THREADS + 8)]
        try:
            wait_until(lambda: server.metrics.waiting._value.get() == THREADS + 8)
            assert client.post("/search", json={"text": "graph"}, timeout=20).status_code == 200
        finally:
            release.set()
        assert {one.result().status_code for one in waiting} == {200}
        # The words of the next state of the library are indexed without a question.
        assert server.served.has_words
        library.add(dated(13)[12:])
        _wait_for(server, "papers", 13)
        wait_until(lambda: server.served.has_words)


def test_a_deadline_ends_with_its_request() -> None:
    """A minute after a question that needs words, their next index was given up, unnoticed."""
    service = Service(Answers(cast(Served, None)))
    answer = service.answer(lambda: Health(status="ok", papers=1, generation=1), waits=True)
    assert asyncio.run(answer).status_code == 200
    assert service._waiting.submit(DEADLINE.get, None).result() is None


def test_evidence_compares_vectors_of_one_space(tmp_path: Path) -> None:
    """Behind an adapter, sentences were encoded by another model than the vector given."""
    models = [save_tiny_model(tmp_path / f"m{n}", similarity="cosine", seed=n) for n in range(2)]
    library = Library.create(tmp_path / "library", dated(120), model=models[0], dtype="float32")
    library.adapt(models[1], dtype="float32")
    (vector,) = library.model.encode(["graph"], task="search", role="query").tolist()
    request = Search(vector=vector, evidence=True, k=2)
    own, newer = (Served(library.path, model=model) for model in (None, models[1]))
    assert all(paper.evidence for paper in Answers(own).search(request).papers)
    with pytest.raises(DataError, match="differ in weights"):
        Answers(newer).search(request)
    of_text = Answers(newer).search(Search(text="graph", evidence=True, k=2))
    assert all(paper.evidence for paper in of_text.papers)
    for served in (own, newer):
        served.close()


def test_a_former_state_of_the_library_lets_go_of_its_files(tmp_path: Path) -> None:
    """At once: files that a sync has removed kept their place on the disk, for days perhaps."""
    library = small_library(tmp_path, 12, "float32")
    served = Served(library.path)
    gc.disable()
    try:
        served.library.search("graph", words=0.5, percentile=True)
        former = weakref.ref(served.library.state.shards("search"))
        library.add(dated(13)[12:])
        assert served.follow()
        assert former() is None
    finally:
        gc.enable()
        served.close()


@pytest.mark.long
def test_a_library_made_anew_in_its_folder_is_never_mixed_with_the_former(tmp_path: Path) -> None:
    """Its files have the former's names, and are there before its ``library.json``."""
    library = small_library(tmp_path, 12, "float32")
    library.add([{"id": "last", "title": "zzz"}])
    renamed = [{**paper, "id": f"new {paper['id']}", "title": "new"} for paper in dated(12)]
    other = Library.create(tmp_path / "other", renamed, model=tmp_path / "model", dtype="float32")
    other.add([{"id": "new last", "title": "another"}])
    with running(library.path) as server:
        shutil.rmtree(library.path)
        question = {"text": "zzz", "only": ["last"]}
        gone = server.post("/search", question)
        assert gone.status_code == 503
        assert str(tmp_path) not in gone.text
        hidden = (other.path / "library.json").rename(tmp_path / "library.json")
        shutil.copytree(other.path, library.path)
        assert server.post("/search", {"text": "zzz", "k": 1}).status_code == 503
        hidden.rename(library.path / "library.json")
        _wait_for(server, "status", "ok")
        found = server.post("/search", {"text": "zzz", "k": 20}).json()["papers"]
        assert len(found) == 13
        assert all(paper["id"].startswith("new") for paper in found)


def test_questions_outlast_several_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of two states in a row may be gone; the second time it was an error (503)."""
    library = small_library(tmp_path, 12, "float32")
    served, build = Served(library.path), WordIndex._build
    seen: list[int] = []

    def overtaken(index: WordIndex) -> Any:
        seen.append(len(index._rows))
        if len(seen) < 3:
            library.sync([paper(number, version=len(seen)) for number in range(12 + len(seen))])
            library.compact()
        return build(index)

    monkeypatch.setattr(WordIndex, "_build", overtaken)
    assert len(served.ask(lambda one: one.search("graph", words=1.0, k=20), words=True))
    assert seen == [12, 13, 14]
    served.close()


def test_what_waits_for_an_index_of_words_asks_the_library_of_then(tmp_path: Path) -> None:
    """It asked the former one, whose index each of the waiting questions built once more."""
    library = small_library(tmp_path, 12, "float32")
    served = Served(library.path)
    with ThreadPoolExecutor(1) as threads:
        with served._reading_words:
            waiting = threads.submit(served.ask, len, words=True)
            wait_until(waiting.running)
            time.sleep(0.2)
            library.add(dated(13)[12:])
            assert served.follow()
        assert waiting.result(60) == 13
    served.close()


def test_an_index_of_words_that_cannot_be_built_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is built for nobody's request; the next one that needs it tries again."""
    library = small_library(tmp_path, 12, "float32")
    served = Served(library.path)
    served._uses_words = True

    def broken(index: WordIndex) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(WordIndex, "_build", broken)
        served.index_words()
    assert "the index of words could not be built" in caplog.text
    assert "No space left" in caplog.text
    served.index_words()
    assert served.has_words
    served.close()


def test_an_unforeseen_error_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_tiny_model(tmp_path / "model", similarity="cosine")
    papers = dated(12)
    library = Library.create(tmp_path / "library", papers[:11], model=model, dtype="float32")
    served = Served(library.path)
    library.add(papers[11:])

    def broken() -> Library:
        raise RuntimeError(f"out of luck in {served.path}")

    with monkeypatch.context() as patch:
        patch.setattr(served._following, "_read", broken)
        assert not served.follow()
        assert not served.follow()
    # Once, for the administrator, with the path that requests are not told.
    assert served.problem == "RuntimeError"
    (message,) = (r.getMessage() for r in caplog.records if "still serving" in r.getMessage())
    assert message.endswith(f"the former library: out of luck in {served.path}")
    assert served.follow()
    assert (served.problem, len(served.library)) == (None, 12)
    served.close()


@pytest.mark.long
def test_changes_by_another_process_show_up_without_errors(tmp_path: Path, folder: Path) -> None:
    model = Library.open(folder).model
    Library.create(tmp_path / "library", dated(50), model=folder.parent / "model")
    with running(tmp_path / "library") as server, ThreadPoolExecutor(4) as threads:
        writer, stop = Library.open(tmp_path / "library", model=model), False

        def ask() -> set[int]:
            found = set()
            while not stop:
                found.add(server.post("/search", {"text": "graph", "k": 50}).status_code)
            return found

        clients = [threads.submit(ask) for _ in range(4)]
        for n in range(3):
            writer.sync([paper(i, version=n, year=2000) for i in range(32 + n)])
            writer.compact()
            time.sleep(0.1)
        _wait_for(server, "papers", 34)
        stop = True
        assert [client.result() for client in clients] == [{200}] * 4
        assert same_hits(server.post("/search", {"text": "graph"}).json(), writer.search("graph"))
