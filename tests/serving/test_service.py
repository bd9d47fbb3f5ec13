"""The service answers like the library, refuses invalid requests, and stays up."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from scimult.library import Library
from scimult.serving.guards import Limits
from tests.library.conftest import WORDS
from tests.serving.conftest import LABELS, TOLERANCE, Running, running, same_hits
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    """Return the service's library, opened separately."""
    return Library.open(folder)


@pytest.mark.long
def test_answers_are_the_librarys_under_concurrency(server: Running, library: Library) -> None:
    requests: list[tuple[str, dict[str, Any], Any]] = []
    for n in range(25):
        words, year = f"{WORDS[n % 10]} {n} of {WORDS[n % 7]}", 2000 + n % 5
        k = 1 + n % 7
        where = {"year": {"from": year, "to": None}}
        hits = library.search(words, k=k, where={"year": (year, None)}, percentile=n % 2 == 0)
        body = {"text": words, "k": k, "where": where, "percentile": n % 2 == 0}
        requests.append(("/search", body, hits))
        ids = [f"p{n:03d}", f"p{n + 1:03d}"][: 1 + n % 2]
        requests.append(("/recommend", {"ids": ids, "k": k}, library.recommend(ids, k=k)))
        draft = {"title": words, "abstract": "We study it."}
        requests.append(("/recommend", {**draft, "k": k}, library.recommend(**draft, k=k)))
        share = {"text": words, "words": 0.5, "offset": n % 3}
        requests.append(("/search", share, library.search(words, words=0.5, offset=n % 3)))
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda one: client.post(server.url + one[0], json=one[1]), requests)
        )
    assert {answer.status_code for answer in answers} == {200}
    wrong = [
        one[:2]
        for one, answer in zip(requests, answers, strict=True)
        if not same_hits(answer.json(), one[2])
    ]
    assert wrong == []


def test_a_list_may_ask_for_papers_without_a_value(server: Running, library: Library) -> None:
    found = server.post("/search", {"text": "graph", "k": 99, "where": {"venue": ["x", None]}})
    wanted = library.search("graph", k=99, where={"venue": ["x", None]}).ids
    assert [one["id"] for one in found.json()["papers"]] == wanted != []


def test_a_page_has_hits_with_their_columns(server: Running, library: Library) -> None:
    found = server.post("/search", {"text": "graph", "k": 2, "percentile": True}).json()
    hits = library.search("graph", k=2, percentile=True)
    assert found["score"] == hits.score == "cosine"
    for one, hit in zip(found["papers"], hits, strict=True):
        assert (one["rank"], one["id"], one["title"], one["abstract"], one["columns"]) == (
            hit.rank,
            hit.id,
            hit.title,
            hit.abstract,
            dict(hit.columns),
        )
        assert one["percentile"] == pytest.approx(hit.percentile, abs=0.6)


def test_returned_vectors_can_be_searched_by(server: Running, library: Library) -> None:
    texts = ["graph", "token 3", "plasma"]
    expected = library.model.encode(texts, task="search", role="query")
    body = {"texts": texts}
    found = server.post("/encode", body).json()
    np.testing.assert_allclose(found["vectors"], expected, atol=TOLERANCE)
    packed = server.post("/encode", {**body, "format": "base64"}).json()
    vectors = np.frombuffer(base64.b64decode(packed["vectors"]), "<f4").copy().reshape(3, -1)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)
    hits = library.search(vector=vectors[0], k=3)
    assert same_hits(server.post("/search", {"vector": vectors[0].tolist(), "k": 3}).json(), hits)


def test_evidence_is_a_sentence_of_the_paper(server: Running, library: Library) -> None:
    found = server.post("/search", {"text": "graph", "k": 5, "evidence": True}).json()["papers"]
    for one in found:
        parts = one["abstract"].split(". ") if one["abstract"] else [one["title"]]
        assert one["evidence"] in parts


def test_tags_are_the_librarys(server: Running, library: Library) -> None:
    ids = ["p003", "p001"]
    found = server.post("/tag", {"ids": ids, "k": 2}).json()["papers"]
    expected = {one.id: one for one in library.tag(LABELS, ids=ids, k=2)}
    assert [one["id"] for one in found] == ids
    for one in found:
        labels = expected[one["id"]].labels
        assert [label["id"] for label in one["labels"]] == labels.ids
        scores = [label["score"] for label in one["labels"]]
        np.testing.assert_allclose(scores, labels.scores, atol=TOLERANCE)
    out = {"papers": [{"title": "a graph"}], "exclude": [LABELS[0]["id"]], "k": 3}
    (draft,) = server.post("/tag", out).json()["papers"]
    assert {label["id"] for label in draft["labels"]} == {one["id"] for one in LABELS[1:]}
    assert server.post("/tag", {**out, "threshold": 2.0}).json()["papers"][0]["labels"] == []
    own = server.post("/tag", {"ids": ids, "labels": ["Plasma", "Tokens"], "k": 1}).json()
    names = [one.labels.ids for one in library.tag(["Plasma", "Tokens"], ids=ids, k=1)]
    assert sorted(label["name"] for one in own["papers"] for label in one["labels"]) == sorted(
        name for listed in names for name in listed
    )


def test_reviewers_are_ranked_by_their_best_papers(server: Running, library: Library) -> None:
    publications = {
        "ann": ["graph 1", "plasma", "token 4", "vision"],
        "bob": ["speech", "kernel 2"],
    }
    candidates = [
        {"id": f"{name}{n}", "title": title, "reviewer": name}
        for name, titles in publications.items()
        for n, title in enumerate(titles)
    ]
    body = {"papers": [{"title": "graph network"}], "candidates": candidates}
    found = server.post("/match", {**body, "score": "top3"}).json()
    encode, task = library.model.encode, "link_prediction"
    (draft_D,) = encode([{"title": "graph network"}], task=task, role="query").astype(np.float64)
    expected = {}
    for name, titles in publications.items():
        papers = [{"title": title} for title in titles]
        scores = encode(papers, task=task, role="candidate").astype(np.float64) @ draft_D
        expected[name] = np.sort(scores)[-3:].mean()
    assert found["of"] == "reviewers"
    got = {one["id"]: one["score"] for one in found["matches"][0]}
    assert got == pytest.approx(expected, abs=TOLERANCE)
    bare = [{**one, "title": "of two copies the one with an abstract counts"} for one in candidates]
    full = [{**one, "title": "", "abstract": one["title"]} for one in candidates]
    once, twice = (server.post("/match", {**body, "candidates": c}) for c in (full, bare + full))
    assert twice.json()["matches"] == once.json()["matches"]
    spaced = [
        {**one, "reviewer": f" {one['reviewer']} " if n % 2 else one["reviewer"]}
        for n, one in enumerate(full)
    ]
    again = server.post("/match", {**body, "candidates": spaced})
    assert again.json()["matches"] == once.json()["matches"]
    papers = [{k: v for k, v in one.items() if k != "reviewer"} for one in candidates]
    found = server.post("/match", {**body, "candidates": papers, "k": 2}).json()
    assert found["of"] == "papers"
    assert len(found["matches"][0]) == 2
    hits = library.recommend(title="graph network", k=3)
    found = server.post("/match", {"papers": body["papers"], "k": 3}).json()
    assert [one["id"] for one in found["matches"][0]] == hits.ids


@pytest.mark.parametrize(
    ("path", "body", "problem", "fix"),
    [
        ("/search", {"text": "a", "kk": 3}, "unknown field 'kk'", "did you mean 'k'"),
        ("/search", {"text": "a", "k": "3"}, "k:", "/openapi.json"),
        ("/search", {"text": "a", "k": 1001}, "k:", "/openapi.json"),
        ("/search", {}, "nothing to search for", "give text"),
        ("/search", {"text": "a", "task": "serch"}, "unknown task", "did you mean 'search'"),
        ("/search", {"text": "a", "where": {"yeer": 1}}, "unknown column", "mean 'year'"),
        ("/search", {"text": "a", "where": {"year": "x"}}, "cannot filter", "year (BIGINT)"),
        ("/search", {"text": "a", "where": {"year": {"form": 1}}}, "form", "use one of from, to ("),
        ("/search", [], "the body", "with Content-Type: application/json"),
        ("/match", {"papers": [{"id": "a"}]}, "'papers.0.id'", "use one of title, abstract"),
        ("/search", {"text": "a", "where": "1 = 1"}, "where", "/openapi.json"),
        ("/search", {"ids": ["p00x"]}, "no paper has this id", "use ids"),
        ("/search", {"vector": [1.0]}, "width", "model"),
        ("/recommend", {"title": None, "abstract": " "}, "no paper to", "give ids of the"),
        ("/recommend", {"ids": ["p001"], "title": "a"}, "mutually exclusive", "give ids, or title"),
        ("/encode", {"texts": []}, "texts", "/openapi.json"),
        ("/encode", {"texts": ["a"], "task": "all"}, "unknown task", "use one of classification"),
        ("/encode", {"texts": [" "]}, "empty", "words"),
        ("/encode", {"texts": [{"titel": "a"}]}, "titel", "title"),
        ("/encode", {"texts": ["a" * 100_001]}, "texts", "/openapi.json"),
        ("/search", {"text": "a", "evidence": True, "k": 101}, "too many", "pages of 100"),
        (
            "/match",
            {
                "papers": [{"title": "a"}],
                "candidates": [
                    {"id": "1", "title": "Graphs", "reviewer": "ann"},
                    {"id": "1", "title": "Tokens", "reviewer": "bob"},
                ],
            },
            "two publications have the id '1'",
            "an id of its own",
        ),
        ("/tag", {}, "no papers", "give ids"),
        ("/tag", {"ids": ["p001"], "exclude": ["Graph"]}, "no label", "by their ids"),
        (
            "/match",
            {"papers": [{"title": "a"}], "where": {}, "candidates": [{"id": "a"}]},
            "where can only be used",
            "leave",
        ),
    ],
)
def test_invalid_requests_are_refused_with_a_fix(
    server: Running, path: str, body: Any, problem: str, fix: str
) -> None:
    answer = server.post(path, body)
    found = answer.json()
    assert answer.status_code == found["status"] == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem in found["problem"]
    assert fix in found["fix"]
    assert found["detail"].count("Fix: ") == 1
    assert "Traceback" not in answer.text
    assert str(server.served.path) not in answer.text


def _raw(server: Running, request: bytes, seconds: float = 10) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as sock:
        sock.settimeout(seconds)
        sock.sendall(request)
        return sock.recv(1 << 16)


def test_malformed_requests_and_others_get_their_codes(server: Running) -> None:
    headers = {"content-type": "application/json"}
    half = b'{"text": "\\ud800"}', b'{"text": "a", "task": "\\ud800"}'
    for content in (b"{", b"\xff\xfe", b"[1]", b"null", *half, b"{" * 100_000):
        assert (
            httpx.post(f"{server.url}/search", content=content, headers=headers).status_code == 422
        )
    assert httpx.get(f"{server.url}/search").status_code == 405
    assert httpx.get(f"{server.url}/nothing").status_code == 404
    assert httpx.get(f"{server.url}/library", headers={"host": "evil.example"}).status_code == 421
    assert _raw(server, b"\x16\x03\x01 no http\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"


def test_an_internal_error_reveals_nothing_about_the_code(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(server.served), "ask", lambda *_, **__: 1 // 0)
    answer = server.post("/search", {"text": "a"})
    assert answer.status_code == 500
    assert answer.json()["problem"] == "internal error of the service"
    assert "Zero" not in answer.text
    monkeypatch.undo()
    assert server.post("/search", {"text": "a"}).status_code == 200


def test_clients_that_go_away_disturb_nobody(server: Running) -> None:
    body = json.dumps({"text": "graph"}).encode()
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    port = int(server.url.rpartition(":")[2])
    for part in (
        head,
        head + b"Content-Length: 999\r\n\r\n{",
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(part)
    assert server.post("/search", {"text": "graph"}).status_code == 200
    wait_until(lambda: not server.metrics.waiting.collect()[0].samples[0].value)


@pytest.fixture(scope="module")
def strict(folder: Path) -> Iterator[Running]:
    """Return a service with low limits and a key."""
    limits = Limits(waiting=2, seconds=5, body_bytes=2000, body_seconds=0.3)
    with running(folder, limits=limits, key="a-key-of-many-letters") as found:
        yield found


AUTHORISED = {"authorization": "Bearer a-key-of-many-letters"}


@pytest.mark.long
def test_large_and_slow_requests(strict: Running) -> None:
    large = {"text": "a" * 3000}
    assert strict.post("/search", large, headers=AUTHORISED).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 100

    answer = httpx.post(f"{strict.url}/search", content=chunks(), headers=AUTHORISED)
    assert answer.status_code == 413
    head = "POST /search HTTP/1.1\r\nHost: a\r\nX-API-Key: a-key-of-many-letters\r\n"
    found = _raw(strict, f"{head}Content-Length: 50\r\n\r\n{{".encode())
    assert found.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in found.lower()
    assert strict.post("/search", {"text": "a"}, headers=AUTHORISED).status_code == 200


def test_a_client_that_asks_first_sends_no_large_request(strict: Running) -> None:
    head = b"POST /search HTTP/1.1\r\nHost: a\r\nX-API-Key: a-key-of-many-letters\r\n"
    length = b"Content-Length: 8000000\r\nExpect: 100-continue\r\n\r\n"
    assert _raw(strict, head + length).startswith(b"HTTP/1.1 413")


@pytest.mark.long
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer wröng".encode()}, 401),
        ({"authorization": "Basic ???"}, 401),
        ({"authorization": "Basic wröng".encode()}, 401),
        ({"x-api-key": ""}, 401),
        (AUTHORISED, 200),
        ({"x-api-key": "a-key-of-many-letters"}, 200),
    ],
)
def test_the_key(strict: Running, headers: dict[str, Any], status: int) -> None:
    assert strict.post("/search", {"text": "a"}, headers=headers).status_code == status
    for path in ("/library", "/metrics", "/openapi.json", "/v1/projects"):
        assert httpx.get(strict.url + path, headers=headers).status_code == status
    assert httpx.get(f"{strict.url}/health").status_code == 200


def test_the_key_in_an_address(strict: Running) -> None:
    url = strict.url.replace("//", "//me:a-key-of-many-letters@")
    assert httpx.get(f"{url}/v1/projects").status_code == 200


@pytest.mark.long
def test_requests_beyond_the_limit_are_told_when_to_retry(
    strict: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = strict.served.library.model
    slow = model._embed_tokens  # type: ignore[attr-defined]
    monkeypatch.setattr(model._passes, "_run", lambda *job: (time.sleep(0.5), slow(*job))[1])  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(
                lambda n: strict.post("/search", {"text": "a"}, headers=AUTHORISED), range(8)
            )
        )
    assert {answer.status_code for answer in found} == {200, 429}
    refused = [answer for answer in found if answer.status_code == 429]
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    assert len(found) - len(refused) >= 2


@pytest.mark.long
def test_slow_requests_are_given_up(folder: Path) -> None:
    with running(folder, limits=Limits(seconds=0.3)) as server:
        model = server.served.library.model
        slow = model._embed_tokens  # type: ignore[attr-defined]
        model._passes._run = lambda *job: (time.sleep(1), slow(*job))[1]  # type: ignore[attr-defined]
        assert server.post("/search", {"text": "a"}).status_code == 504
        model._passes._run = slow  # type: ignore[attr-defined]
        time.sleep(1)
        assert server.post("/search", {"text": "a"}).status_code == 200


@pytest.mark.long
def test_a_stop_under_load_loses_no_accepted_request(folder: Path) -> None:
    """Unanswered requests were never accepted: service and clients count the same answers."""
    statuses: list[int] = []
    with running(folder) as server, ThreadPoolExecutor(16) as threads:

        def ask(client: int) -> None:
            with httpx.Client(timeout=60) as http:
                for n in range(1000):
                    try:
                        body = {"text": f"{WORDS[n % 10]} {client}"}
                        answer = http.post(f"{server.url}/search", json=body)
                        assert len(answer.json()["papers"]) == 10
                        statuses.append(answer.status_code)
                    except httpx.TransportError:
                        return

        clients = [threads.submit(ask, n) for n in range(16)]
        wait_until(lambda: len(statuses) >= 100)
        server.stop()
        for client in clients:
            client.result()
        assert set(statuses) == {200}
        assert server.count(200) == len(statuses)
        assert server.metrics.waiting.collect()[0].samples[0].value == 0
