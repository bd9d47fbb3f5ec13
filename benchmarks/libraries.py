"""Cost of a growing library: create it from existing vectors, index, search and sync it.

Papers and vectors are generated: random words, and points around random directions. Each step is a
call of the command line, including its start-up.

Shape legend: N papers, D width.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scimult.files import folder_bytes
from scimult.inference import SciMult
from scimult.inference.origin import space_of
from scimult.library.records import Paper
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.shards import publish, write_shard
from scimult.retrieval.space import Space
from scimult.types import FloatArray, Text

_SHARD, _TOPICS, _NOISE, _NEW = 1 << 16, 2000, 0.6, 0.01
_WORDS = 60


@dataclass(frozen=True)
class Step:
    """Wall seconds, CPU seconds of all processes, and peak memory of the largest one."""

    seconds: float
    cpu: float
    peak_megabytes: float


@dataclass
class LibraryCost:
    """Cost of each step for a library, and its size on disk."""

    papers: int
    steps: dict[str, Step] = field(default_factory=dict)
    gigabytes: float = 0.0


def measure_libraries(model: Path, sizes: Sequence[int], processes: int) -> Iterator[LibraryCost]:
    """Create, index, search and sync libraries of these sizes, one after the other.

    Parameters
    ----------
    model : Path
        Encodes the query; the vectors of papers are generated in its space.
    sizes : sequence of int
        Numbers of papers.
    processes : int
        Processes that build an index in parts, compared with one that builds it alone.
    """
    opened = SciMult.from_pretrained(model, dtype="auto")
    space = space_of(opened, "search", "candidate", "float16")
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            yield _measured(Path(folder), model, space, size, processes)


def _measured(folder: Path, model: Path, space: Space, size: int, processes: int) -> LibraryCost:
    new = max(1, round(_NEW * size))
    vectors, papers, today = folder / "vectors", folder / "papers.jsonl", folder / "today.jsonl"
    _write(vectors, papers, today, space, size, new)
    library, cost = str(folder / "library"), LibraryCost(size)
    inputs = ["--vectors", str(vectors), "--papers"]
    encoding = ["--model", str(model), "--task", "search", "--precision", "float16"]
    query = ["search", "w1 w2 w3", "--library", library, "--top", "10"]
    cost.steps["create"] = _run([["library", "create", library, *encoding, *inputs, str(papers)]])
    cost.gigabytes = folder_bytes(folder / "library") / 1e9
    cost.steps["search, exact"] = _run([query])
    index = ["library", "index", library]
    cost.steps["index"] = _run([index])
    parts = [[*index, "--part", f"{number}/{processes}"] for number in range(processes)]
    cost.steps[f"index by {processes} processes"] = _run(parts)
    cost.steps["search"] = _run([query])
    cost.steps["sync, 1 % new"] = _run([["library", "sync", library, *inputs, str(today)]])
    cost.steps["search after it"] = _run([query])
    return cost


def _write(vectors: Path, papers: Path, today: Path, space: Space, size: int, new: int) -> None:
    """Write the vectors of all papers, and the files of yesterday and today."""
    generator = np.random.default_rng(0)
    topics_TD = unit_rows(generator.standard_normal((_TOPICS, space.width)).astype(np.float32))
    shards = []
    with papers.open("w") as before, today.open("w") as after:
        for number, first in enumerate(range(0, size + new, _SHARD)):
            rows = range(first, min(first + _SHARD, size + new))
            hashes = []
            for row, words in zip(
                rows, generator.integers(0, 5000, (len(rows), _WORDS)), strict=True
            ):
                text = " ".join(f"w{word}" for word in words)
                paper = Paper(f"p{row}", Text("paper", f"Paper {row}", text))
                hashes.append(paper.text_hash)
                line = {
                    "id": paper.id,
                    "title": f"Paper {row}",
                    "abstract": text,
                    "year": 1980 + row % 40,
                }
                after.write(json.dumps(line) + "\n")
                if row < size:
                    before.write(json.dumps(line) + "\n")
            near_ND = _around(topics_TD, len(rows), generator)
            shards.append(write_shard(vectors, number, space, hashes, near_ND, hashes))
    publish(vectors, space, shards)


def _around(topics_TD: FloatArray, rows: int, generator: np.random.Generator) -> FloatArray:
    noise_ND = generator.standard_normal((rows, topics_TD.shape[1]), dtype=np.float32)
    noise_ND *= _NOISE / np.sqrt(topics_TD.shape[1])
    noise_ND += topics_TD[generator.integers(0, len(topics_TD), rows)]
    return unit_rows(noise_ND)


def _run(calls: Sequence[Sequence[str]]) -> Step:
    """Run calls of the command line concurrently."""
    start = time.perf_counter()
    program = [sys.executable, "-m", "scimult.cli.main"]
    running = [
        subprocess.Popen([*program, *call], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for call in calls
    ]
    cpu = peak = 0.0
    for process in running:
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, errors
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss / 1024)
    return Step(time.perf_counter() - start, cpu, peak)
