"""Stop on SIGTERM, SIGINT, SIGHUP (a closed terminal): end the step, write a checkpoint, exit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Ctrl-C reaches a rank twice: from the terminal and, moments later, from its launcher.
_SAME_REQUEST_SECONDS = 5.0


class StoppedError(Exception):
    """A signal stopped the run, which wrote a checkpoint.

    Attributes
    ----------
    signal : int
        Number of the signal, from 1; exit codes are 128 more.
    """

    def __init__(self, done: str, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} after {done}, with a checkpoint: run the same command to continue"
        )
        self.signal = number


class StopRequest:
    """Whether a signal asked this process to stop, and which."""

    def __init__(self) -> None:
        self.signal = 0
        self._requested_at = 0.0

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Turn these signals into a request; a later second signal acts immediately.

        Python delivers signals to the main thread: in other threads this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        if before[signal.SIGHUP] is signal.SIG_IGN:  # by nohup
            del before[signal.SIGHUP]
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signal:
            self.signal, self._requested_at = number, now
        elif now - self._requested_at > _SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
