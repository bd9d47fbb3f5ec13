"""Units are made while the device still computes the one before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from scimult.data.batches import Unit


class UnitsAhead:
    """Makes units in a thread of its own, one ahead of the one that was asked for.

    A GPU would otherwise wait at every step while the host reads texts and looks up known
    positives: milliseconds, as many as a small encoder's step takes there. Everything goes
    through the one thread, so that ``unit_at`` is never called twice at a time.

    Parameters
    ----------
    unit_at : callable
        Returns what this rank does in a unit, purely by number.
    units : int
        How many units there are.
    """

    def __init__(self, unit_at: Callable[[int], Unit], units: int) -> None:
        self._unit_at = unit_at
        self._units = units
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="units")
        self._made: dict[int, Future[Unit]] = {}

    def __call__(self, number: int) -> Unit:
        """Return a unit; what was raised while it was made is raised here."""
        asked = self._made.get(number) or self._thread.submit(self._unit_at, number)
        self._made = {}
        if number + 1 < self._units:
            self._made[number + 1] = self._thread.submit(self._unit_at, number + 1)
        return asked.result()
