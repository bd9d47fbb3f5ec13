"""Sides of a comparison run in processes of their own, and say what goes wrong there."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from benchmarks.processes import own_process, seconds_of_step
from scimult.errors import ConfigError, SciMultError


class OtherSteps:
    """Steps that may be refused, or end their process."""

    def __init__(self, _: torch.device, problem: str | None = None) -> None:
        if problem is not None:
            raise ConfigError(problem, fix="install it")

    def step(self, number: int) -> None:
        """Refuse step 1, and end the process at step 2."""
        if number == 1:
            raise ConfigError("no such step", value=os.getpid())
        if number == 2:
            os._exit(1)


@pytest.mark.ranks
def test_a_step_runs_in_its_own_process_and_its_error_arrives() -> None:
    with own_process(OtherSteps) as ask, own_process(OtherSteps) as ask_other:
        processes = {os.getpid(), ask(os.getpid), ask_other(os.getpid)}
        assert len(processes) == 3
        assert ask(seconds_of_step, "wall", 0) >= 0
        with pytest.raises(ConfigError, match="no such step") as refused:
            ask_other(seconds_of_step, "wall", 1)
        assert refused.value.value == ask_other(os.getpid)
        assert ask(seconds_of_step, "cpu", 3) >= 0


@pytest.mark.ranks
def test_what_cannot_start_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    refused = partial(OtherSteps, problem="the peer is not installed")
    with (
        pytest.raises(ConfigError, match=r"^the peer is not installed\. Fix: install it$"),
        own_process(refused),
    ):
        pass
    assert "Exception ignored" not in capfd.readouterr().err


@pytest.mark.ranks
def test_a_killed_side_is_named() -> None:
    with (
        pytest.raises(SciMultError, match="was killed.*fewer --pairs"),
        own_process(OtherSteps) as ask,
    ):
        ask(seconds_of_step, "wall", 2)
