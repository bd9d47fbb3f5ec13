"""Micro-batches are made while the device still computes the one before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from scimult.data.batches import MicroBatch


class MicroBatchesAhead:
    """Makes micro-batches in a thread of its own, one ahead of the one that was asked for.

    A GPU would otherwise wait at every step while the host reads texts and looks up known
    positives: milliseconds, as many as a small encoder's step takes there. Everything goes
    through the one thread, so that ``unit_at`` is never called twice at a time.

    Parameters
    ----------
    unit_at : callable
        Returns what this rank does in a micro-batch, purely by number.
    micro-batches : int
        How many micro-batches there are.
    """

    def __init__(self, micro_batch_at: Callable[[int], MicroBatch], micro_batches: int) -> None:
        self._micro_batch_at = micro_batch_at
        self._micro_batches = micro_batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="units")
        self._made: dict[int, Future[MicroBatch]] = {}

    def __call__(self, number: int) -> MicroBatch:
        """Return a micro-batch; what was raised while it was made is raised here."""
        asked = self._made.get(number) or self._thread.submit(self._micro_batch_at, number)
        self._made = {}
        if number + 1 < self._micro_batches:
            self._made[number + 1] = self._thread.submit(self._micro_batch_at, number + 1)
        return asked.result()
