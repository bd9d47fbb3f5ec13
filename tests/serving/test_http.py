"""Requests beside the questions: compressed, cut off or too large; HEAD; the page; metrics."""

from __future__ import annotations

import gzip
import re
import socket
import time
from pathlib import Path

import httpx
import pytest

from scimult.library import Library
from scimult.serving.guards import Limits
from tests.serving.conftest import Running, running
from tests.waiting import wait_until


def test_compressed_requests_are_refused(server: Running) -> None:
    """A compressed form would pass as one without a text, which has no labels."""
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    content = gzip.compress(b'{"text": "graph"}')
    for path in ("/search", "/v1/projects/labels/suggest"):
        answer = httpx.post(server.url + path, content=content, headers=headers)
        assert answer.status_code == 415
        assert "'gzip'. Fix: send it without Content-Encoding" in answer.json()["detail"]
    plain = {**headers, "content-encoding": "identity"}
    answer = httpx.post(f"{server.url}/search", content=b'{"text": "graph"}', headers=plain)
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/library", "/nothing"])
def test_head_is_get_without_its_body(server: Running, path: str) -> None:
    head, whole = httpx.head(server.url + path), httpx.get(server.url + path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    for name in ("content-length", "content-type"):
        assert head.headers[name] == whole.headers[name]


def test_the_page_works_below_a_path_of_a_proxy(server: Running) -> None:
    """Paths from the root lead to the proxy's other services, key and all (getnora-io/nora#685)."""
    page, script = (httpx.get(f"{server.url}{path}").text for path in ("/", "/page.js"))
    assert not re.search(r"""(?:src|href)=["']/""", page)
    known = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    called = re.findall(r"""(?:call|run|fetch)\(["'](/?)(\w+)""", script)
    assert {f"/{name}" for _, name in called} >= {"/library", "/search", "/recommend", "/tag"}
    assert all(f"/{name}" in known and not slash for slash, name in called)


@pytest.mark.parametrize("path", ["/search/", "/health/", "/v1/projects/"])
def test_a_last_slash_is_no_redirect(server: Running, path: str) -> None:
    """It led to this machine's own address, past the proxy and its TLS (Kludex/starlette#2748)."""
    method = "POST" if path == "/search/" else "GET"
    answer = httpx.request(method, server.url + path, headers={"X-Forwarded-Host": "public"})
    assert (answer.status_code, "location" in answer.headers) == (404, False)
    assert answer.json()["fix"].startswith("leave out the last slash")


def test_a_request_that_was_cut_off_is_not_worked_on(server: Running) -> None:
    """The beginning of a form is a form: its labels were computed, for nobody."""
    refused, answered = server.count(400), server.count(200)
    head = "POST /v1/projects/labels/suggest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n"
    form = "Content-Type: application/x-www-form-urlencoded\r\n\r\ntext=graph"
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address) as sock:
        sock.sendall((head + form).encode())
    wait_until(lambda: server.count(400) > refused)
    assert server.count(200) == answered


def test_refusals_of_forms_do_not_ask_for_json(server: Running) -> None:
    headers = {"content-type": "multipart/form-data"}
    url = f"{server.url}/v1/projects/labels/suggest"
    answer = httpx.post(url, content=b"--X", headers=headers)
    assert answer.status_code == 400
    assert "boundary" in answer.json()["problem"]
    assert answer.json()["fix"].startswith("see /v1/projects/labels/suggest in /openapi.json")


def test_half_a_character_is_named_in_a_filter(server: Running) -> None:
    """It was said to be no integer, the first alternative of a filter's values."""
    headers = {"content-type": "application/json"}
    content = b'{"text": "a", "where": {"venue": "\\ud800"}}'
    answer = httpx.post(f"{server.url}/search", content=content, headers=headers)
    assert answer.status_code == 422
    assert "unicode" in answer.json()["problem"]


def test_a_refusal_has_the_value_that_is_wrong(server: Running) -> None:
    def value(body: dict[str, object]) -> object:
        answer = server.post("/search", body)
        assert answer.status_code == 422
        return answer.json().get("value")

    assert value({"ids": ["p00x"]}) == "p00x"
    assert value({"ids": ["é" * 999]}) == "é" * 200
    assert value({"text": "a", "k": 1000, "min_score": 0.5, "words": 0.5}) is None
    assert value({"text": "a", "task": "serch"}) == "serch"


def test_an_internal_error_is_logged_once(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(server.served), "ask", lambda *_, **__: 1 // 0)
    assert server.post("/search", {"text": "a"}).status_code == 500
    wait_until(lambda: caplog.records)
    time.sleep(0.1)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_candidates_have_one_task(server: Running) -> None:
    """``all``, which is no task but every one, was an internal error."""
    body = {"papers": [{"title": "a"}], "candidates": [{"id": "b", "title": "c"}], "task": "all"}
    answer = server.post("/match", body)
    assert answer.status_code == 422
    assert answer.json()["problem"] == "unknown task"


def test_a_client_reads_why_its_large_request_is_refused(folder: Path) -> None:
    """It sends all before it reads; its connection was reset meanwhile."""
    head, part = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\n", b" " * 8000
    chunk = b"1f40\r\n" + part + b"\r\n"
    requests = [
        (b"Content-Length: 8000000\r\n\r\n", part, b""),
        (b"Transfer-Encoding: chunked\r\n\r\n", chunk, b"0\r\n\r\n"),
    ]
    with running(folder, limits=Limits(body_bytes=2000)) as server:
        for length, sent, end in requests:
            with socket.create_connection(server.socket.getsockname(), timeout=20) as connection:
                connection.sendall(head + length)
                for _ in range(1000):
                    connection.sendall(sent)
                connection.sendall(end)
                assert connection.recv(1000).startswith(b"HTTP/1.1 413")


@pytest.mark.long
def test_requests_and_passes_are_counted_for_prometheus(folder: Path) -> None:
    def read() -> dict[str, float]:
        answer = httpx.get(f"{server.url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in answer.text.splitlines() if line[0] != "#"]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    with running(folder) as server:
        before = read()
        for text in ("graph", "speech", ""):
            server.post("/search", {"text": text})
        counts = read()
    assert counts['scimult_requests_total{path="/search",status="200"}'] == 2
    assert counts['scimult_requests_total{path="/search",status="422"}'] == 1
    assert counts['scimult_request_seconds_count{path="/search"}'] == 3
    assert 0 < counts['scimult_request_seconds_sum{path="/search"}'] < 60
    assert counts["scimult_pass_texts_count"] == before["scimult_pass_texts_count"] + 2
    assert counts["scimult_pass_texts_sum"] == before["scimult_pass_texts_sum"] + 2
    tokens = "scimult_encoded_tokens_total"
    assert before[tokens] + 6 <= counts[tokens] <= before[tokens] + 100
    assert counts["scimult_requests_in_flight"] == 0
    assert counts["scimult_library_papers"] == 200
    assert counts["scimult_library_generation"] == Library.open(folder).state.manifest.generation


@pytest.mark.long
def test_the_page_needs_no_key(folder: Path) -> None:
    """It asks for the key; and says nothing about the papers."""
    kinds = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
    with running(folder, key="k" * 20) as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        for path, kind in kinds.items():
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
