"""Ends a process that makes no step for too long, and says where it stood."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from scimult import distributed
from scimult.training.loop import Callback, StepReport

# All ranks give up within moments of each other; a launcher kills the rest when one has.
_SECONDS_TO_REPORT = 2.0


class Watchdog(Callback):
    """Ends this process when no step has ended for ``seconds``.

    A rank that waits for another cannot know why it waits. Every rank therefore watches
    itself and prints its stack before it ends: the one that hangs shows where.

    Parameters
    ----------
    seconds : float
        Longest time from one step's end to the next, evaluation and checkpoint included.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._alive = threading.Event()
        self._done = False
        self._last = "before its first step"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block ends."""
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done = True
            self._alive.set()
            thread.join()

    def on_step(self, report: StepReport) -> None:
        """Start to count anew."""
        self._last = f"after step {report.step}"
        self._alive.set()

    def _watch(self) -> None:
        while not self._done:
            if not self._alive.wait(self._seconds):
                self._give_up()
            self._alive.clear()

    def _give_up(self) -> None:
        sys.stderr.write(
            f"error: rank {distributed.rank()} on {socket.gethostname()} hangs {self._last}: no "
            f"step ended within {self._seconds / 60:g} minutes (engine.timeout_minutes). "
            "Ranks in a collective wait for one that stands elsewhere. The same command continues "
            "from the newest checkpoint. Stack:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        threading.Event().wait(_SECONDS_TO_REPORT)
        os._exit(1)
