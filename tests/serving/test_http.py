"""Requests that browsers do not send: compressed bodies, and HEAD."""

from __future__ import annotations

import gzip

import httpx
import pytest

from tests.serving.conftest import Running


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
