"""Memory of a long-lived process does not grow with the number of questions."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving import Request, load, served
from scimult.library import Library

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, glibc")


class _Heap(ctypes.Structure):
    """The struct that glibc's ``mallinfo2`` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _in_use() -> int:
    """Return the bytes allocated in C and not yet freed."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Heap
    found = ask()
    return int(found.uordblks + found.hblkhd)


@pytest.mark.long
def test_passes_of_new_shapes_keep_no_memory(folder: Path) -> None:
    """Run a pass of each of 100 sizes, then of each of 100 others.

    oneDNN's kernels take about 300 kB per shape for each of about five products. Kept for all
    shapes, as torch does by default, they would add some 90 MB. The limit, a ninth of that,
    allows for fragmented heaps.
    """

    def requests(sizes: range) -> list[Request]:
        # A word is a token of the tiny model; 40 of them make a text.
        texts = [
            [" ".join(["graph"] * 40)] * (size // 40) + [" ".join(["deep"] * (1 + size % 40))]
            for size in sizes
        ]
        return [("/encode", {"texts": one, "format": "base64"}) for one in texts]

    with served(folder, 1) as (host, port, process):

        def ask(sizes: range) -> float:
            answers, _, _ = load((host, port), requests(sizes), 1)
            assert all(isinstance(answer, dict) for answer in answers)
            status = Path(f"/proc/{process}/status").read_text()
            return int(status.split("RssAnon:")[1].split()[0]) / 1024

        before = ask(range(3, 900, 9))
        after = ask(range(304, 900, 6))
    assert after - before < 10, (before, after)


@pytest.mark.long
def test_reading_papers_keeps_no_memory(folder: Path) -> None:
    """Read papers of 500 questions: a database that keeps 1.4 kB of each would hold 700 kB."""
    papers = Library.open(folder).state.papers
    generator = np.random.default_rng(0)
    questions = [generator.choice(200, 5, replace=False) for _ in range(600)]
    for rows in questions[:100]:
        papers.table(rows)

    def growth() -> int:
        before = _in_use()
        for rows in questions[100:]:
            papers.table(rows)
        return _in_use() - before

    # What other tests left at work may take memory, too, but not each time.
    assert any(growth() < 200_000 for _ in range(3))
