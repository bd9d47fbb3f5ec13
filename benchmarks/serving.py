"""Cost of a service relative to its model: throughput, latency, memory, and wrong answers.

Clients and the service share the machine, so the cost of the clients is included.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Ratio, ratio
from scimult.inference import SciMult
from scimult.library import Library
from scimult.types import FloatArray

# The other texts in a pass change the order of sums. A bfloat16 may then round differently: 3e-4 in
# a unit vector of width 384, once in a few hundred texts. Vectors of different papers are at least
# 0.1 apart.
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-3}
_EACH = 5
Request = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class ServingCost:
    """Figures of a service, relative to one call of the model with all texts (bulk).

    Attributes
    ----------
    clients, texts : int
        Concurrent clients, and requests per round, each with one text.
    tokens : float
        Average tokens per text.
    bulk, served : float
        Texts per second, median over rounds.
    share : Ratio
        Bulk time over service time, round by round; at 1 the service is free.
    cpu : Ratio
        CPU time of the service's process over that of the bulk.
    p50, p99 : float
        Milliseconds from a request to its answer.
    checked, wrong : int
        Answers compared with the bulk's, and those that differ.
    """

    clients: int
    texts: int
    tokens: float
    bulk: float
    served: float
    share: Ratio
    cpu: Ratio
    p50: float
    p99: float
    checked: int
    wrong: int


@dataclass(frozen=True)
class Soak:
    """A long run: requests per second, wrong answers, and the service's memory over time.

    Attributes
    ----------
    requests, wrong : int
        Requests, and answers that differ from the library's, refusals included.
    refused : dict of str to int
        How often each status but 200 was the answer.
    per_second : float
        Requests per second over the whole run.
    megabytes : list of float
        Memory without mapped files, after each tenth of the requests.
    """

    requests: int
    wrong: int
    refused: dict[str, int]
    per_second: float
    megabytes: list[float]


@contextmanager
def served(library: Path, threads: int, *options: str) -> Iterator[tuple[str, int, int]]:
    """Run ``scimult serve``; yield host, port and process."""
    command = [sys.executable, "-m", "scimult.cli.main", "serve", str(library), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment.pop("SCIMULT_API_KEY", None)
    with subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = re.search(r"http://([\d.]+):(\d+)", process.stdout.readline())
        assert address is not None, "the service did not start"
        try:
            yield address[1], int(address[2]), process.pid
        finally:
            process.terminate()


def load(
    address: tuple[str, int], requests: Sequence[Request], clients: int
) -> tuple[list[Any], FloatArray, float]:
    """Return the answers to requests, in order, with the seconds of each and of all."""
    indices, lock = iter(range(len(requests))), threading.Lock()
    answers: list[Any] = [None] * len(requests)
    seconds = np.zeros(len(requests), dtype=np.float32)

    def client() -> None:
        connection = HTTPConnection(*address, timeout=120)
        while True:
            with lock:
                index = next(indices, None)
            if index is None:
                connection.close()
                return
            path, body = requests[index]
            start = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            seconds[index] = time.perf_counter() - start
            answers[index] = json.loads(content) if answer.status == 200 else answer.status

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, seconds, time.perf_counter() - start


def measure_serving(
    library: Path, papers: Sequence[dict[str, str]], clients: int, rounds: int, threads: int
) -> ServingCost:
    """Encode papers in one call of the model, and one by one at a service, in turns."""
    import torch

    torch.set_num_threads(threads)
    model = Library.open(library).model
    tolerance = _tolerance(model)
    task = next(task for task in model.tasks.names if model.kind(task, "query") == "paper")
    requests: list[Request] = [
        ("/encode", {"texts": [paper], "task": task, "format": "base64"}) for paper in papers
    ]
    before = model.tokens_encoded
    expected = model.encode(papers, task=task)
    tokens = (model.tokens_encoded - before) / len(papers)
    times: dict[str, list[float]] = {"bulk": [], "served": [], "bulk cpu": [], "served cpu": []}
    waits, wrong = [], 0
    with served(library, threads) as (host, port, process):
        load((host, port), requests[: 2 * clients], clients)
        for _ in range(rounds):
            wall, cpu = time.perf_counter(), time.process_time()
            model.encode(papers, task=task)
            times["bulk"].append(time.perf_counter() - wall)
            times["bulk cpu"].append(time.process_time() - cpu)
            cpu = _cpu_of(process)
            answers, seconds, total = load((host, port), requests, clients)
            times["served cpu"].append(_cpu_of(process) - cpu)
            times["served"].append(total)
            waits.append(seconds)
            wrong += _wrong_vectors(answers, expected, tolerance)
    p50, p99 = np.percentile(np.concatenate(waits), [50, 99]) * 1e3
    return ServingCost(
        clients=clients,
        texts=len(papers),
        tokens=tokens,
        bulk=len(papers) / float(np.median(times["bulk"])),
        served=len(papers) / float(np.median(times["served"])),
        share=ratio(times["bulk"], times["served"]),
        cpu=ratio(times["served cpu"], times["bulk cpu"]),
        p50=float(p50),
        p99=float(p99),
        checked=rounds * len(papers),
        wrong=wrong,
    )


def measure_soak(library: Path, requests: int, clients: int, threads: int) -> Soak:
    """Send many requests for vectors and papers to a service, and check every answer."""
    opened = Library.open(library)
    tolerance = _tolerance(opened.model)
    words = [text.title for text in opened.state.papers.texts_of(opened.state.live_rows()[:200])]
    searches: list[Request] = [("/search", {"text": text, "k": 5}) for text in words]
    encodings: list[Request] = [
        ("/encode", {"texts": [text], "format": "base64"}) for text in words
    ]
    vectors_ND = opened.model.encode(words, task="search")
    scores = [opened.search(text, k=5).scores for text in words]
    # One request in five is a search.
    plan = [
        (n % _EACH == 0, n // _EACH if n % _EACH == 0 else n) for n in range(_EACH * len(words))
    ]
    part = requests // 10
    megabytes, wrong, total = [], 0, 0.0
    refused: Counter[str] = Counter()
    with served(library, threads) as (host, port, process):
        for _ in range(10):
            calls = list(itertools.islice(itertools.cycle(plan), part))
            batch = [(searches if search else encodings)[n % len(words)] for search, n in calls]
            answers, _, seconds = load((host, port), batch, clients)
            total += seconds
            megabytes.append(_memory_of(process))
            refused.update(str(answer) for answer in answers if not isinstance(answer, dict))
            for answer, (search, n) in zip(answers, calls, strict=True):
                number = n % len(words)
                if search:
                    wrong += not _close(answer, scores[number], tolerance)
                else:
                    expected = vectors_ND[number : number + 1]
                    wrong += _wrong_vectors([answer], expected, tolerance)
    return Soak(10 * part, wrong, dict(refused), 10 * part / total, megabytes)


def _tolerance(model: SciMult) -> float:
    return TOLERANCE[str(model.dtype).removeprefix("torch.")]


def _wrong_vectors(answers: Sequence[Any], expected_ND: FloatArray, tolerance: float) -> int:
    """Count answers that differ from the vector of their text."""
    wrong = 0
    for answer, expected_D in zip(answers, expected_ND, strict=True):
        if not isinstance(answer, dict):
            wrong += 1
            continue
        vector_D = np.frombuffer(base64.b64decode(answer["vectors"]), "<f4")
        wrong += not np.allclose(vector_D, expected_D, atol=tolerance)
    return wrong


def _close(answer: Any, scores: list[float], tolerance: float) -> bool:
    if not isinstance(answer, dict):
        return False
    return bool(np.allclose([one["score"] for one in answer["papers"]], scores, atol=tolerance))


def _cpu_of(process: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_of(process: int) -> float:
    """Return the megabytes of a process, without mapped files."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) / 1024
