"""``scimult search --server``: the library's own results, and errors with a fix."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from scimult.serving import schemas
from tests.command import invoke, refused, rows_of
from tests.serving.conftest import Running, running


def _rows(*arguments: object) -> list[dict[str, Any]]:
    return rows_of(invoke(*arguments, "--json"))


@pytest.mark.parametrize(
    "question",
    [
        ["search", "graph speech"],
        ["search", "graph", "--top", "3", "--offset", "2", "--exclude", "p004", "--percentile"],
        ["search", "graph", "--words", "0.4"],
        ["search", "graph", "--words", "rank", "--exact"],
        ["search", "graph", "--min-score", "0.05"],
        ["recommend", "--id", "p003", "--id", "p005"],
        ["recommend", "--title", "graph", "--abstract", "We study speech.", "--top", "4"],
    ],
)
def test_a_service_answers_as_the_library(server: Running, question: list[str]) -> None:
    library = server.served.library.path
    found = _rows(*question, "--server", server.url)
    # On torch, like the service; without it the query is float32 in a bfloat16 library.
    wanted = _rows(*question, "--library", library, "--device", "cpu")
    assert found
    for ours, theirs in zip(found, wanted, strict=True):
        # Other texts in a batch change the order of float32 sums; scores have 4 decimals.
        assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1.01e-4)
        assert ours == theirs


@pytest.mark.long
@pytest.mark.parametrize(("offset", "deepest"), [(0, 8), (3, 7)])
def test_all_papers_above_a_threshold_come_in_pages(
    server: Running, monkeypatch: pytest.MonkeyPatch, offset: int, deepest: int
) -> None:
    """A service lists 1,000 at once; the command used to print no more, without a word."""
    question = ["search", "graph speech", "--min-score", "-1", "--offset", offset]
    here = ["--library", server.served.library.path, "--device", "cpu"]  # on torch, as above
    wanted = [row["id"] for row in _rows(*question, *here)]
    monkeypatch.setattr(schemas, "MOST_RESULTS", 4)
    found = _rows(*question, "--server", server.url)
    assert [row["id"] for row in found] == wanted
    assert len(found) > 8
    monkeypatch.setattr(schemas, "MOST_DEPTH", 4)
    result = invoke(*question, "--server", server.url)
    assert f"a service lists no more than the best {deepest}" in " ".join(result.stderr.split())


def test_no_paper_is_said_beside_the_results(server: Running) -> None:
    library = server.served.library.path
    for target in (("--server", server.url), ("--library", library)):
        found = invoke("search", "graph", "--min-score", "1.5", *target, "--json")
        assert (found.exit_code, found.stdout) == (0, "")
        assert found.stderr.strip().endswith("no paper of the library matches")


def test_a_remote_question_loads_no_torch(server: Running) -> None:
    script = (
        "import sys\n"
        "from scimult.cli.main import app\n"
        f"app(['search', 'graph', '--server', {server.url!r}], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'duckdb', 'faiss', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "score (cosine)" in done.stdout


def test_refusals_are_reported(server: Running, tmp_path: Path) -> None:
    assert "unknown task" in refused("search", "x", "--task", "serch", "--server", server.url)
    where = refused("search", "x", "--where", "1", "--server", server.url)
    assert "--server excludes --where" in where
    assert "filter with --library" in where
    assert "--server excludes --library. Fix: leave out --library\n" in refused(
        "search", "x", "--library", "anywhere", "--server", server.url
    )
    for question in (["search", "x"], ["recommend", "--id", "p001"]):
        for option in (["--dtype", "float32"], ["--model", "m"], ["--papers", "p.jsonl"]):
            excluded = refused(*question, *option, "--server", server.url)
            assert f"--server excludes {option[0]}" in excluded
    assert "not the address of a service" in refused("search", "x", "--server", "localhost:8000")
    assert "no service answers" in refused("search", "x", "--server", "http://127.0.0.1:9")
    assert "Not Found" in refused("search", "x", "--server", f"{server.url}/v1/nothing")


def test_a_proxy_is_not_asked_for_this_machine(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look for the service on its own machine (StackStorm/st2#3890)."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert _rows("search", "graph", "--server", server.url)
    far = invoke("search", "graph", "--server", "http://service.invalid")
    assert "if $HTTP_PROXY does not lead there, list it in $NO_PROXY" in far.stderr


@pytest.mark.parametrize("address", ["http://localhost:80O0", "http://[::1", "http://:8000"])
def test_half_an_address_is_named(address: str) -> None:
    assert "not the address of a service" in refused("search", "graph", "--server", address)


_OK = b"HTTP/1.1 200 OK\r\nContent-Length:"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no service answers at"),
        (_OK + b" 99\r\n\r\n{", "no service answers at"),
        (_OK + b" 2\r\n\r\n[]", "something else answers at"),
        (_OK + b' 13\r\n\r\n{"status": 1}', "something else answers at"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html", "answers 502 Bad Gateway"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n[]", "answers 404 Not Found"),
    ],
)
def test_what_is_no_service_is_told_from_one(answer: bytes, problem: str) -> None:
    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        error = refused("search", "graph", "--server", address)
        thread.join()
    assert problem in error


def test_a_service_with_a_key_requires_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * 20
    with running(folder, key=key) as guarded:
        error = refused("search", "graph", "--server", guarded.url)
        assert "wrong. Fix: set $SCIMULT_API_KEY to the service's key" in error
        # As a file ends that was written on Windows.
        monkeypatch.setenv("SCIMULT_API_KEY", f"{key}\r\n")
        assert _rows("search", "graph", "--server", guarded.url)


@pytest.mark.parametrize("key", ["one\nsecret and more", "schlüssel der tür"])
def test_a_key_that_no_header_can_carry_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SCIMULT_API_KEY", key)
    error = refused("search", "graph", "--server", "http://127.0.0.1:9")
    assert "$SCIMULT_API_KEY is not a valid key" in error
    assert key[:5] not in error
