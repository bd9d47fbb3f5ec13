"""SIGTERM and SIGINT as requests: the step ends, a checkpoint is written, the run leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Ctrl-C reaches a rank from the terminal and, moments later, from its launcher.
_SAME_REQUEST_SECONDS = 5.0


class StoppedError(Exception):
    """A signal asked the run to stop, and it did, with a checkpoint.

    Attributes
    ----------
    signal : int
        Number of the signal, from 1; exit codes are 128 more.
    """

    def __init__(self, done: str, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} after {done}, with a checkpoint: the same command continues"
        )
        self.signal = number


class StopRequest:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal = 0
        self._asked_at = 0.0

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Turn SIGTERM and SIGINT into a request; whoever insists later is obeyed at once.

        Python delivers signals to the main thread: elsewhere nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, self._ask)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signal:
            self.signal, self._asked_at = number, now
        elif now - self._asked_at > _SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
