"""Stop requests: accepted once, enforced by a later second one, and handlers restored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from scimult.training.stopping import StopRequest


def test_a_signal_becomes_a_request_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest().listening() as request:
        assert request.signal == 0
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert request.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("nohup", [False, True])
def test_a_closed_terminal_stops_what_nohup_does_not_keep(nohup: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        with StopRequest().listening() as request:
            if not nohup:
                assert signal.getsignal(signal.SIGHUP) not in (signal.SIG_DFL, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGHUP)
            assert request.signal == (0 if nohup else signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_later_second_signal_acts_at_once() -> None:
    script = """
import os, signal
from scimult.training import stopping
with stopping.StopRequest().listening():
    os.kill(os.getpid(), signal.SIGTERM)
    stopping._SAME_REQUEST_SECONDS = -1.0
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.returncode == -signal.SIGTERM
    assert "still here" not in found.stdout
