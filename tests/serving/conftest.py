"""A service over a tiny library, in a thread of the tests, at a real address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from scimult.cli.serve import followed_labels
from scimult.serving.annif import Project
from scimult.serving.answers import Answers
from scimult.serving.app import Service
from scimult.serving.guards import Limits
from scimult.serving.metrics import Metrics
from scimult.serving.run import listen
from scimult.serving.served import Served
from tests.library.conftest import small_library
from tests.waiting import wait_until

LABELS = [
    {"id": "http://example.org/1", "name": "Graphs", "definition": "Nodes and edges."},
    {"id": "http://example.org/2", "name": "Networks"},
    {"id": "http://example.org/3", "name": "Vision"},
]
# See test_batching.py; the scores of the top ten are rarely as close.
TOLERANCE = 1e-5


class Running:
    """A running service, with its address and its metrics."""

    def __init__(self, service: Service, served: Served, metrics: Metrics) -> None:
        self.service, self.served, self.metrics = service, served, metrics
        self.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(service.app, log_level="warning", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self.socket],))
        self._thread.start()
        wait_until(lambda: self._server.started)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Post one request."""
        return httpx.post(self.url + path, json=body, timeout=60, **options)

    def stop(self) -> None:
        """Stop as on SIGTERM, and wait for the end."""
        self._server.should_exit = True
        self._thread.join()
        self.socket.close()

    def count(self, status: int) -> float:
        """Return the number of answers with a status."""
        return sum(
            sample.value
            for metric in self.metrics.requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["status"] == str(status)
        )


def same_hits(found: dict[str, Any], hits: Any) -> bool:
    """Return whether an answer has the library's own hits, but for the order of equal scores."""
    scores = np.array([one["score"] for one in found["papers"]])
    ids = [one["id"] for one in found["papers"]]
    close = np.allclose(scores, hits.scores, atol=TOLERANCE)
    return close and (ids == hits.ids or np.diff(scores).max() > -3 * TOLERANCE)


def save_labels(folder: Path) -> Path:
    """Write ``LABELS`` into a folder and return the file."""
    file = folder / "labels.jsonl"
    file.write_text("".join(f"{json.dumps(label)}\n" for label in LABELS))
    return file


@contextmanager
def running(
    folder: Path,
    *,
    limits: Limits | None = None,
    key: str | None = None,
    most_tokens: int = 512,
    tagger: Path | None = None,
) -> Iterator[Running]:
    """Run a service over a library."""
    metrics, limits = Metrics(), limits or Limits()
    served = Served(
        folder, most_tokens=most_tokens, patience=limits.seconds, observe=metrics.passed
    )
    labels = None if tagger is not None else save_labels(folder.parent)
    answers = Answers(served, followed_labels(served, labels, tagger, None, False))
    project = Project("labels", answers.bounded_tags)
    hosts = frozenset({"127.0.0.1"}) if key is None else None
    service = Service(
        answers, limits=limits, metrics=metrics, project=project, key=key, hosts=hosts
    )
    found = Running(service, served, metrics)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library of 200 papers."""
    root = tmp_path_factory.mktemp("served")
    small_library(root, 200)
    return root / "library"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """Return a service that runs during the tests of a module."""
    with running(folder) as found:
        yield found
