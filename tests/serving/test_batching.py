"""Texts of several callers in one pass: each gets its own vectors or error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scimult.checkpoints import load_pretrained
from scimult.inference import SciMult
from scimult.inference.precision import TF32
from scimult.serving.batching import DEADLINE, Passes, SharedModel
from scimult.serving.refusals import Refusal
from scimult.types import FloatArray, TokenIds
from tests.tiny import save_tiny_model
from tests.waiting import wait_until

# With other texts in a pass, float32 sums have another order: 2 blocks of width 16.
TOLERANCE = 1e-5


def _sums(tokens: Sequence[TokenIds], routes: Sequence[int]) -> FloatArray:
    """Stand in for a model: vectors depend only on the text and the route."""
    rows = [[[float(ids.sum()), route, len(ids)] for ids in tokens] for route in routes]
    return np.array(rows, dtype=np.float32)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_every_caller_gets_its_own_vectors(
    calls: list[tuple[list[int], int]], most: int, workers: int
) -> None:
    sizes: list[int] = []
    passes = Passes(
        _sums,
        most_tokens=most,
        threads=workers,
        observe=lambda _, tokens: sizes.append(tokens),
    )
    jobs = [
        ([np.full(length, number, np.int32) for length in lengths], [route])
        for number, (lengths, route) in enumerate(calls)
    ]
    with ThreadPoolExecutor(len(jobs)) as threads:
        found = list(threads.map(lambda job: passes.encode(*job), jobs))
    passes.close()
    for (tokens, routes), vectors in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(vectors, _sums(tokens, routes))
    longest = max(length for lengths, _ in calls for length in lengths)
    assert max(sizes) <= max(most, longest)
    assert sum(sizes) == sum(length for lengths, _ in calls for length in lengths)


class Gate:
    """Stands in for a blocked model, and records its passes."""

    def __init__(self) -> None:
        self.open, self.passes = threading.Event(), list[tuple[int, tuple[int, ...]]]()

    def __call__(self, tokens: Sequence[TokenIds], routes: Sequence[int]) -> FloatArray:
        self.passes.append((len(tokens), tuple(routes)))
        assert self.open.wait(30)
        if any(ids[0] == 13 for ids in tokens):
            raise ZeroDivisionError
        return _sums(tokens, routes)


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()


def _text(number: int = 1) -> list[TokenIds]:
    return [np.array([number, 2, 3], np.int32)]


def _wait(passes: Passes, count: int) -> None:
    """Wait until the queue has this many jobs."""
    wait_until(lambda: len(passes._waiting) >= count)


def test_waiting_jobs_share_the_next_pass(gate: Gate) -> None:
    passes = Passes(gate, most_tokens=9)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(passes.encode, _text(), [0])
        wait_until(lambda: gate.passes)
        rest = [threads.submit(passes.encode, _text(n), [n % 2]) for n in range(7)]
        _wait(passes, 7)
        gate.open.set()
        assert all(future.result() is not None for future in (first, *rest))
    assert sorted(gate.passes[1:]) == [(1, (0,)), (3, (0,)), (3, (1,))]
    passes.close()


def test_a_long_request_fills_the_threads_and_lets_others_in_between(gate: Gate) -> None:
    passes = Passes(gate, most_tokens=3, threads=2)
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(passes.encode, _text() * 6, [0])
        wait_until(lambda: len(gate.passes) == 2)
        short = threads.submit(passes.encode, _text(2), [1])
        _wait(passes, 1)
        gate.open.set()
        np.testing.assert_array_equal(long.result(), _sums(_text() * 6, [0]))
        np.testing.assert_array_equal(short.result(), _sums(_text(2), [1]))
    # Two parts at once, and the short one before the last of the long one.
    assert (1, (1,)) in gate.passes[2:5]
    passes.close()


def test_late_answers_are_refused_and_never_computed(gate: Gate) -> None:
    passes = Passes(gate, patience=0.1)
    with ThreadPoolExecutor(2) as threads:
        errors = [
            threads.submit(passes.encode, _text(), [0]).exception(),
            threads.submit(passes.encode, _text(), [1]).exception(),
        ]
    assert all(isinstance(error, Refusal) and error.status == 504 for error in errors)
    gate.open.set()
    passes.close()
    passes._threads[0].join()
    assert gate.passes == [(1, (0,))]


def test_expired_requests_cost_no_pass(gate: Gate) -> None:
    gate.open.set()
    passes = Passes(gate, most_tokens=3)

    def late(seconds: float) -> BaseException | None:
        DEADLINE.set(time.monotonic() + seconds)
        return threads.submit(copy_context().run, passes.encode, _text() * 3, [0]).exception()

    with ThreadPoolExecutor(1) as threads:
        error = copy_context().run(late, -1)
        assert isinstance(error, Refusal)
        assert error.status == 504
        assert gate.passes == []
        assert copy_context().run(late, 30) is None
    assert gate.passes == [(1, (0,))] * 3
    passes.close()


def test_an_error_reaches_its_caller_and_the_thread_goes_on(gate: Gate) -> None:
    gate.open.set()
    passes = Passes(gate)
    with pytest.raises(ZeroDivisionError):
        passes.encode(_text(13), [0])
    np.testing.assert_array_equal(passes.encode(_text(), [0]), _sums(_text(), [0]))
    passes.close()


def test_an_error_of_one_request_does_not_reach_those_of_its_pass(gate: Gate) -> None:
    """A text for which memory runs out failed all that shared its pass."""
    passes = Passes(gate)
    with ThreadPoolExecutor(4) as threads:
        threads.submit(passes.encode, _text(), [0])
        wait_until(lambda: gate.passes)
        rest = [threads.submit(passes.encode, _text(n), [0]) for n in (1, 13, 2)]
        _wait(passes, 3)
        gate.open.set()
        assert isinstance(rest[1].exception(), ZeroDivisionError)
        for number, future in ((1, rest[0]), (2, rest[2])):
            np.testing.assert_array_equal(future.result(), _sums(_text(number), [0]))
    assert [count for count, _ in gate.passes] == [1, 3, 1, 1, 1]
    passes.close()


def test_closing_answers_all_waiting_jobs(gate: Gate) -> None:
    passes = Passes(gate)
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(passes.encode, _text(0), [0])]
        wait_until(lambda: gate.passes)
        futures += [threads.submit(passes.encode, _text(n), [n % 2]) for n in range(1, 4)]
        _wait(passes, 3)
        passes.close()
        gate.open.set()
        for number, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), _sums(_text(number), [number % 2]))
    passes._threads[0].join(30)
    assert not passes._threads[0].is_alive()
    np.testing.assert_array_equal(passes.encode(_text(), [0]), _sums(_text(), [0]))


@pytest.mark.long
def test_a_shared_model_is_the_model(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", similarity="cosine")
    alone, shared = SciMult.from_pretrained(folder), None
    shared = SharedModel(SciMult.from_pretrained(folder), most_tokens=100)
    assert shared.fingerprint == alone.fingerprint
    texts = [f"{'graph token ' * (n % 5)} {n}" for n in range(40)]
    calls = [
        (texts[n : n + 1 + n % 3], task, role)
        for n in range(38)
        for task in ("search", "link_prediction")
        for role in ("query", "candidate")
    ]

    def encode(one: tuple[list[str], str, str]) -> FloatArray:
        return shared.encode(one[0], task=one[1], role=one[2])  # type: ignore[call-overload, no-any-return]

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(encode, calls))
    for (part, task, role), vectors in zip(calls, found, strict=True):
        expected = alone.encode(part, task=task, role=role)  # type: ignore[call-overload]
        np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)
    both = shared.encode([{"title": "a graph"}], task="all")
    for task, vectors in alone.encode([{"title": "a graph"}], task="all").items():
        np.testing.assert_allclose(both[task], vectors, atol=TOLERANCE)
    shared.close()


def test_a_shared_model_keeps_the_precision_and_the_budget_of_its_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A CPU refuses tf32, but can tell which precision was asked for.
    monkeypatch.setattr("scimult.inference.encoder.resolve_dtype", lambda dtype, device: dtype)
    pretrained = load_pretrained(save_tiny_model(tmp_path / "model"))
    model = SciMult(pretrained, name="m", device="cpu", dtype=TF32, max_tokens_per_batch=8)
    seen: list[str] = []
    budgets: list[int | None] = []

    def embed(model: object, tokens: Sequence[TokenIds], **options: Any) -> FloatArray:
        seen.append(torch.get_float32_matmul_precision())
        budgets.append(options["max_tokens_per_batch"])
        return np.ones((1, len(tokens), 16), dtype=np.float32)

    monkeypatch.setattr("scimult.inference.encoder.embed_tokens_each", embed)
    model.encode(["graphs"], task="search")
    shared = SharedModel(model)
    shared.encode(["graphs"], task="search")
    shared.close()
    assert (seen, budgets) == (["high", "high"], [8, 8])
    assert torch.get_float32_matmul_precision() == "highest"
