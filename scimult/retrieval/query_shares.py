"""Queries divided among threads that each search for their own.

Lists are selected by many small operations, after each of which torch's threads would wait for each
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError
from threading import Event

import torch

from scimult.hardware import in_threads, independent_threads
from scimult.progress import bar
from scimult.retrieval.runs import Ranking

Advance = Callable[[int], object]
"""Tells how many candidates a search has passed."""

# Queries searched together in one pass over the candidates.
_QUERIES = 1 << 14
# A thread of its own pays off with as many queries, and as many products of numbers.
_LEAST_QUERIES, _LEAST_PRODUCTS = 64, 1 << 27


def query_shares(
    queries: int, shape: tuple[int, ...], device: torch.device
) -> tuple[list[slice], int]:
    """Cut queries into parts that are searched at once, and by how many threads.

    ``shape`` is that of the candidates. There is at least one part.
    """
    if queries < 2 * _LEAST_QUERIES:
        return [slice(0, queries)], 1
    worth = queries * math.prod(shape) // _LEAST_PRODUCTS
    workers = max(1, min(independent_threads(device), queries // _LEAST_QUERIES, worth))
    count = max(workers, -(-queries // (_QUERIES // workers)))
    rows = -(-queries // count)
    return [slice(first, first + rows) for first in range(0, queries, rows)], workers


def search_in_parts(
    search: Callable[[slice, Advance], Ranking],
    parts: list[slice],
    workers: int,
    *,
    lists: tuple[int, int],
    candidates: int,
    show_progress: bool,
) -> Ranking:
    """Return the lists of all parts, in order. An error or an interruption ends all searches.

    ``lists`` are the numbers of queries and of results per query.
    """
    over = Event()
    total = len(parts) * candidates
    with bar("search", total=total, unit="candidate", show=show_progress) as meter:

        def advance(passed: int) -> None:
            if over.is_set():
                raise CancelledError
            meter.update(passed)

        if len(parts) == 1:
            return search(parts[0], advance)
        ranking = Ranking.empty(*lists)
        try:
            found = in_threads(lambda some: search(some, advance), parts, workers)
            for some, part in zip(parts, found, strict=True):
                ranking.fill(some, part)
        finally:
            over.set()
    return ranking
