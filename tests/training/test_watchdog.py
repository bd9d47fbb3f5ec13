"""What the watchdog takes for a hanging process."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from scimult.training.failure import Watchdog
from scimult.training.loop import StepReport


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


@pytest.mark.parametrize("steps", [[], [55.0], [50.0, 100.0, 109.0, 168.0, 220.0]])
def test_each_step_starts_the_time_anew(
    monkeypatch: pytest.MonkeyPatch, steps: list[float]
) -> None:
    """Of a minute, by a clock that each wait moves on; no step ends after the last one."""
    watchdog, left, gave_up = Watchdog(60), list(enumerate(steps, start=1)), []

    class Clock(threading.Event):
        now = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.now += timeout
            assert self.now < 1000, "it waits for ever"
            if left and left[0][1] <= self.now:
                number, _ = left.pop(0)
                watchdog.on_step(StepReport(number, [], [], 1.0, 1.0, 0, 1, 0.1, 1e-3, 1.0))
            return self.is_set()

    clock = Clock()

    def give_up() -> None:
        watchdog._done = True
        gave_up.append((clock.now, watchdog._last))

    monkeypatch.setattr(watchdog, "_alive", clock)
    monkeypatch.setattr(watchdog, "_give_up", give_up)
    watchdog._watch()
    ((when, last),) = gave_up
    assert when == pytest.approx(max(steps, default=0.0) + 60, abs=1.5)
    assert last == (f"after step {len(steps)}" if steps else "before its first step")
