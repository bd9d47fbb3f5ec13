"""What preparing a library costs in time and memory, and how fast its tokens are read again.

The library is generated: papers of random words, citations to earlier papers, labels, and two
papers in a hundred that repeat an earlier one with a word changed.

Shape legend: N texts.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Ratio, interleaved, ratio
from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.data.token_store import TokenStore, build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.hardware import peak_memory
from scimult.preparation.dataset import DatasetConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine
from scimult.preparation.prepare import prepare

WORDS = 20_000
REPEATED = 0.02
PAPERS_PER_CHUNK = 10_000
_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@dataclass(frozen=True)
class Library:
    """Size of a generated library."""

    papers: int
    citations: int
    labels: int
    words: int = 120


@dataclass(frozen=True)
class Cost:
    """What one step took, in a process of its own; memory includes mapped files.

    ``cpu`` counts the seconds of the process and of those it started.
    """

    step: str
    wall: float
    cpu: float
    peak_mb: float


def write_library(folder: Path, library: Library, seed: int = 0) -> DatasetConfig:
    """Write raw files of a library, chunk by chunk, and return what prepares them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    words = np.array([f"w{number:x}q" for number in range(WORDS)])
    with (folder / "labels.jsonl").open("w") as file:
        for number in range(library.labels):
            file.write(json.dumps({"id": f"l{number}", "name": f"label {number}"}) + "\n")
    with (folder / "papers.jsonl").open("w") as file:
        for start in range(0, library.papers, PAPERS_PER_CHUNK):
            count = min(PAPERS_PER_CHUNK, library.papers - start)
            file.writelines(_papers(rng, words, library, start, count))
    with (folder / "citations.tsv").open("w") as file:
        file.write("citing\tcited\n")
        for start in range(0, library.citations, 1_000_000):
            count = min(1_000_000, library.citations - start)
            citing = rng.integers(1, library.papers, count)
            cited = (citing * rng.random(count)).astype(np.int64)
            file.writelines(f"p{a}\tp{b}\n" for a, b in zip(citing, cited, strict=True))
    source = {
        "name": "library",
        "papers": "papers.jsonl",
        "labels": "labels.jsonl",
        "citations": "citations.tsv",
    }
    return validate(DatasetConfig, {"root": str(folder), "sources": [source]})


def measure_preparation(
    config: DatasetConfig, folder: Path, tokenizer: TextTokenizer | None, workers: Sequence[int]
) -> Iterator[Cost]:
    """Prepare and mine below ``folder``, each step in a fresh process; tokenise if told how.

    Yields the cost of each step when it is done. Tokens of W workers are written to
    ``tokens-W``.
    """
    out = folder / "prepared"
    out.mkdir()
    yield measured("prepare", partial(prepare, config, out))
    yield measured("mine", partial(mine, out, MiningConfig()))
    if tokenizer is not None:
        for count in workers:
            work = partial(_tokenise, out, tokenizer, folder / f"tokens-{count}", count)
            yield measured(f"tokenise, {count} processes", work)


def measured(step: str, work: Callable[[], object]) -> Cost:
    """Run ``work`` in a process of its own and return what it took."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return Cost(step, *pool.submit(_run, work).result())


@dataclass(frozen=True)
class Reading:
    """Rows per second of a token store, and what random order costs.

    ``random`` and ``mapped`` compare with reading in order: the same rows in random order,
    and in order straight from the memory map, without our code.
    """

    rows_per_second: float
    random: Ratio
    mapped: Ratio

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "rows_per_second": self.rows_per_second,
            "random": vars(self.random),
            "mapped": vars(self.mapped),
        }


def measure_reading(folder: Path, rounds: int, rows: int = 20_000) -> Reading:
    """Read rows of the token store in ``folder`` in three ways, taking turns."""
    store = TokenStore.open(folder)
    rng = np.random.default_rng(0)
    count = min(rows, len(store))
    start = int(rng.integers(0, len(store) - count + 1))
    in_order = range(start, start + count)
    tokens_T = np.memmap(folder / "tokens.bin", dtype=store.meta["dtype"], mode="r")
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    scattered = rng.choice(len(store), count, replace=False).tolist()
    seconds = interleaved(
        {
            "in order": lambda: [store.tokens(row, 512) for row in in_order],
            "random": lambda: [store.tokens(row, 512) for row in scattered],
            "mapped": lambda: [
                tokens_T[offsets[row] : offsets[row + 1]].astype(np.int64) for row in in_order
            ],
        },
        rounds,
        torch.device("cpu"),
    )
    return Reading(
        rows_per_second=count / float(np.median(seconds["in order"])),
        random=ratio(seconds["random"], seconds["in order"]),
        mapped=ratio(seconds["mapped"], seconds["in order"]),
    )


def _papers(
    rng: np.random.Generator, words: np.ndarray, library: Library, start: int, count: int
) -> list[str]:
    """Return lines of papers; frequencies of words fall as in Zipf's law."""
    drawn = np.minimum(rng.zipf(1.3, (count, library.words)) - 1, WORDS - 1)
    drawn = (drawn + rng.integers(0, 50, drawn.shape)) % WORDS
    repeats = np.flatnonzero(rng.random(count) < REPEATED)
    repeats = repeats[repeats > 0]
    drawn[repeats] = drawn[repeats - 1]
    drawn[repeats, -1] = rng.integers(0, WORDS, len(repeats))
    labels = rng.integers(0, library.labels, (count, 3))
    return [
        json.dumps(
            {
                "id": f"p{start + row}",
                "title": " ".join(words[drawn[row, :10]]),
                "abstract": " ".join(words[drawn[row, 10:]]),
                "year": 1990 + (start + row) * 30 // library.papers,
                "labels": [f"l{label}" for label in sorted(set(labels[row].tolist()))],
            }
        )
        + "\n"
        for row in range(count)
    ]


def _tokenise(prepared: Path, tokenizer: TextTokenizer, target: Path, workers: int) -> None:
    build_token_store(PreparedData.open(prepared).texts, tokenizer, target, workers=workers)


def _run(work: Callable[[], object]) -> tuple[float, float, float]:
    start, cpu_before = time.perf_counter(), _cpu_seconds()
    work()
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu_before
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return wall, cpu, max(peak_memory(), of_children) / 2**20


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in _PROCESSES]
    return sum(one.ru_utime + one.ru_stime for one in used)
