"""``scimult serve``, as a user starts and stops it."""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from typer.testing import Result

from scimult.cli.common import is_local
from scimult.inference import SciMult
from scimult.library import Library
from scimult.serving.app import Service
from scimult.serving.batching import DEADLINE
from scimult.serving.refusals import Refusal
from scimult.serving.run import listen, run
from scimult.tagging import Tagger
from scimult.types import Text
from tests.command import invoke
from tests.library.conftest import dated, small_library
from tests.tagging.made_up import VOCABULARY
from tests.tiny import save_tiny_model


def _serve(*arguments: str) -> Result:
    return invoke("serve", *arguments)


@pytest.mark.parametrize(
    ("arguments", "key", "problem", "fix"),
    [
        (["none", "--host", "0.0.0.0"], None, "without a key", "$SCIMULT_API_KEY"),
        (["none", "--host", "::"], None, "without a key", "--without-key"),
        (["none"], "short", "is not a valid key", "openssl rand"),
        (["none", "--port", "0"], None, "not a library", "scimult library create"),
        (["none", "--labels", "a", "--tagger", "b"], None, "mutually exclusive", "one of them"),
        (["none", "--skip-bad"], None, "only be used with --labels", "leave out --skip-bad"),
        (["none", "--host", "999.1.1.1", "--without-key"], None, "cannot listen", "--host"),
    ],
)
def test_invalid_options_are_reported_at_once(
    arguments: list[str],
    key: str | None,
    problem: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCIMULT_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("SCIMULT_API_KEY", key)
    found = _serve(*arguments)
    assert found.exit_code == 1
    assert problem in found.output
    assert found.output.count("Fix: ") == 1
    assert fix in found.output


def test_an_address_in_use_is_reported_before_torch_is_loaded() -> None:
    """On a busy machine that takes minutes, and until then a client finds nobody listening."""
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from scimult.cli.main import app\n"
        "found = CliRunner().invoke(app, ['serve', 'none', '--port', sys.argv[1]])\n"
        "print(found.exit_code, 'in use' in found.output, 'torch' in sys.modules)\n"
    )
    with listen("127.0.0.1", 0) as sock:
        words = [sys.executable, "-c", script, str(sock.getsockname()[1])]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "False"]


@pytest.mark.parametrize(
    ("host", "key", "headers"),
    [
        ("127.0.0.1", " a-key-of-many-letters\r\n", {"x-api-key": "a-key-of-many-letters"}),
        ("0:0:0:0:0:0:0:1", None, {"host": "[0:0:0:0:0:0:0:1]:8000"}),
    ],
)
def test_what_a_client_can_send_is_accepted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    key: str | None,
    headers: dict[str, str],
) -> None:
    """Headers lose spaces around a key, and have brackets around an address."""
    if key is None:
        monkeypatch.delenv("SCIMULT_API_KEY", raising=False)
    else:
        monkeypatch.setenv("SCIMULT_API_KEY", key)
    sock = listen("127.0.0.1", 0)
    monkeypatch.setattr("scimult.serving.run.listen", lambda *_: sock)
    ran: list[uvicorn.Config] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, **_: ran.append(self.config))
    small_library(tmp_path, 2)
    with sock:
        assert _serve(str(tmp_path / "library"), "--host", host).exit_code == 0
    # Others, used if they are installed, bound no headers or pass the guards.
    assert (ran[0].http, ran[0].ws) == ("h11", "none")

    async def status() -> int:
        transport = httpx.ASGITransport(ran[0].app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/library", headers=headers)).status_code

    assert asyncio.run(status()) == 200


@pytest.mark.parametrize("seconds", ["inf", "nan", "0"])
def test_no_service_waits_for_ever(tmp_path: Path, seconds: str) -> None:
    found = invoke("serve", tmp_path, "--timeout", seconds)
    assert found.exit_code == 2
    assert "--timeout" in found.output


def test_local_addresses() -> None:
    assert all(is_local(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


def test_connections_outlive_those_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy reused one that had just been closed (kserve/kserve#5446)."""
    servers = Mock()
    monkeypatch.setattr("scimult.serving.run._Server", servers)
    run(Mock(), Mock(), 60.0, lambda: None)
    assert servers.call_args.args[0].timeout_keep_alive > 60


def test_a_tagger_of_another_model_keeps_the_services_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that nobody waited for kept a core busy, and a stop waiting, for minutes."""
    earlier = set(threading.enumerate())
    for seed in (0, 1):
        save_tiny_model(tmp_path / f"model{seed}", similarity="cosine", seed=seed)
    Library.create(tmp_path / "library", dated(20), model=tmp_path / "model0")
    tagger = Tagger.train(tmp_path / "tagger", VOCABULARY, model=tmp_path / "model1")
    services: list[Service] = []
    monkeypatch.setattr("scimult.serving.run.run", lambda service, *_: services.append(service))
    words = [str(tmp_path / "library"), "--port", "0", "--tagger", str(tmp_path / "tagger")]
    assert _serve(*words).exit_code == 0
    answers = services[0]._answers
    labels, paper = answers.known_tags(), Text("paper", "Deep vision")
    ask = lambda: labels.suggest([paper], k=3, threshold=None, exclude=())  # noqa: E731
    assert [one.id for one in ask()[0]] == [one.id for one in tagger.tag([paper], 3)[0]]
    late = contextvars.copy_context()
    late.run(DEADLINE.set, time.monotonic() - 1)
    with pytest.raises(Refusal, match="not encoded in time"):
        late.run(ask)
    answers.served.close()
    encoders = [one for one in set(threading.enumerate()) - earlier if "encoder" in one.name]
    for thread in encoders:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.long
def test_a_short_timeout_is_of_requests_not_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ended at once, and asked its operator to send shorter texts."""
    small_library(tmp_path, 2)
    quick = SciMult._embed_tokens
    slow = lambda *job: (time.sleep(0.3), quick(*job))[1]  # noqa: E731
    monkeypatch.setattr(SciMult, "_embed_tokens", slow)
    monkeypatch.setattr("scimult.serving.run.run", lambda *_: None)
    found = _serve(str(tmp_path / "library"), "--port", "0", "--timeout", "0.1")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("host", "key", "hosts", "is_open"),
    [
        ("127.0.0.1", None, {"localhost", "127.0.0.1", "[::1]"}, False),
        ("0.0.0.0", None, None, True),
        ("0.0.0.0", "k" * 16, None, False),
        ("127.0.0.1", "k" * 16, None, False),
    ],
)
def test_who_can_reach_a_service(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    key: str | None,
    hosts: set[str] | None,
    is_open: bool,
) -> None:
    """Names of other sites are refused without a key; with one, a proxy may forward any."""
    small_library(tmp_path, 2)
    services: list[Any] = []
    monkeypatch.setattr("scimult.serving.run.run", lambda service, *_: services.append(service))
    monkeypatch.delenv("SCIMULT_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("SCIMULT_API_KEY", key)
    options = ["--host", host, "--port", "0", "--without-key", "--waiting", "7", "--max-body", "3"]
    found = _serve(str(tmp_path / "library"), *options)
    assert found.exit_code == 0, found.output
    guards = services[0].app
    assert (guards._key, guards._hosts) == (key, hosts)
    assert (guards._limits.waiting, guards._limits.body_bytes) == (7, 3 * 2**20)
    assert ("open to everybody who can reach this machine" in found.stderr) is is_open


@pytest.mark.long
@pytest.mark.parametrize("given", [".", "labels.jsonl", "../mesh.v2", "../labels.jsonl.gz"])
def test_labels_are_a_project_named_after_their_file_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """The current folder's name was empty, so no client could address the project."""
    small_library(tmp_path, 2)
    (tmp_path / "mesh.v2").mkdir()
    monkeypatch.chdir(tmp_path / "mesh.v2")
    line = b'{"id": "l1", "name": "Graphs"}\n'
    Path("labels.jsonl").write_bytes(line)
    Path("../labels.jsonl.gz").write_bytes(gzip.compress(line))
    services: list[Service] = []
    monkeypatch.setattr("scimult.serving.run.run", lambda service, *_: services.append(service))
    assert _serve("../library", "--port", "0", "--labels", given).exit_code == 0

    async def projects() -> Any:
        transport = httpx.ASGITransport(services[0].app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/v1/projects")).json()["projects"]

    (project,) = asyncio.run(projects())
    assert project["project_id"] == ("labels" if "labels" in given else "mesh.v2")


@pytest.mark.ranks
def test_a_service_starts_answers_and_stops(tmp_path: Path) -> None:
    small_library(tmp_path, 20)
    (tmp_path / "labels.jsonl").write_text('{"id": "l1", "name": "Graphs"}\n', encoding="utf-8")
    start = "import sys; from scimult.cli.main import app; app(sys.argv[1:])"
    words = ["serve", "library", "--port", "0", "--labels", "labels.jsonl"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("SCIMULT_API_KEY", None)
    with subprocess.Popen(
        [sys.executable, "-c", start, *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"library: 20 papers at (http://127\.0\.0\.1:\d+)\n", line)
        if found is None:
            process.kill()
            pytest.fail(line + process.communicate()[1])
        assert httpx.get(f"{found[1]}/health").json()["status"] == "ok"
        tagged = httpx.post(f"{found[1]}/tag", json={"ids": ["p001"]}).json()
        assert tagged["papers"][0]["labels"][0]["id"] == "l1"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", "")
    assert process.returncode == 128 + signal.SIGTERM
