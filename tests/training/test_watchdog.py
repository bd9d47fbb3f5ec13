"""What the watchdog takes for a hanging process."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from scimult.training.failure import Watchdog


@pytest.mark.parametrize("ends", [True, False])
def test_a_suspended_process_does_not_hang(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """The first wait takes all the time there is; then a step ends, or none ever does."""
    watchdog, waits, gave_up = Watchdog(60), count(), []

    class Suspended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            watchdog._done = ends and next(waits) > 0
            return watchdog._done

    def give_up() -> None:
        watchdog._done = True
        gave_up.append(watchdog)

    monkeypatch.setattr(watchdog, "_alive", Suspended())
    monkeypatch.setattr(watchdog, "_give_up", give_up)
    watchdog._watch()
    assert bool(gave_up) != ends
