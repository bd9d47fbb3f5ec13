"""Allocator settings, and gaps between blocks that are given back."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest
import torch

from scimult import heap
from scimult.heap import HeapGaps, keep_freed_memory
from tests.ranks import SERVER, run_ranks
from tests.training.engines import do_step, tiny_engine


def _in_process(function: Callable[..., None], argument: object) -> Any:
    """Return what ``function(argument, results)`` puts into ``results`` in a new process."""
    results: Queue[Any] = SERVER.Queue()
    process = SERVER.Process(target=function, args=(argument, results))
    process.start()
    found = results.get(timeout=120)
    process.join()
    return found


def _faults(keeps: bool, results: Queue[int]) -> None:
    if keeps:
        keep_freed_memory()
    # The heap grows for up to five of them, by how it was laid out.
    for _ in range(10):
        torch.ones(2**23).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**23).sum()
    results.put(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.ranks
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_freed_memory_is_not_faulted_in_again() -> None:
    """Reallocating a large buffer costs page faults only the first times."""
    most = _in_process(_faults, False) / 2
    # A system short of memory takes pages away from any process.
    assert any(_in_process(_faults, True) < most for _ in range(5))


def _memory_after_steps(
    sizes: list[int], results: Queue[list[int]], seconds_between: float = 0.0
) -> None:
    """Take ``sizes`` megabytes, one per step, below a block that stays; send what is held then."""
    heap._SECONDS_BETWEEN = seconds_between
    keep_freed_memory()
    gaps, held, stay = HeapGaps(), [], []
    before = heap.own_memory()
    for size in sizes:
        blocks = [torch.ones(2**18) for _ in range(size)]
        stay.append(torch.ones(2**18))
        del blocks
        gaps.after_step()
        held.append((heap.own_memory() - before) >> 20)
    results.put(held)


@pytest.mark.ranks
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells it")
def test_gaps_of_the_heap_are_given_back_but_not_after_every_step() -> None:
    sizes = [200, 150, 200, 1500, 50, 200]
    first, less, same, large, small, again = _in_process(_memory_after_steps, sizes)
    # The heap keeps what it has, up to half as much again.
    assert first == pytest.approx(200, abs=20)
    assert less == pytest.approx(first, abs=20)
    assert same == pytest.approx(first, abs=20)
    # A step that took far more gives all of it back.
    assert large < 50
    assert small == pytest.approx(50, abs=20)
    assert again == pytest.approx(200, abs=20)


def _after_quick_steps(sizes: list[int], results: Queue[list[int]]) -> None:
    # Ten steps take less than a second; each holds about 1 GB.
    _memory_after_steps(sizes, results, seconds_between=100.0)


@pytest.mark.ranks
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells it")
def test_quick_steps_keep_their_gaps_until_giving_them_back_pays_off() -> None:
    """Small models lost a fifth of their time to memory that was cleared again."""
    first, large, *others = _in_process(_after_quick_steps, [200, 1000, 200, 1000, 200])
    assert first == pytest.approx(200, abs=20)
    assert all(held == pytest.approx(large, abs=50) for held in others)
    assert large == pytest.approx(1000, abs=50)


def _held_after_a_larger_step(watched: bool, results: Queue[int]) -> None:
    """Take a small step and one ten times as large; send the megabytes held after it."""
    heap._SECONDS_BETWEEN = 0.0
    keep_freed_memory()
    gaps, stay = HeapGaps(), []
    before = heap.own_memory()
    for size in (100, 1000):
        blocks = [torch.ones(2**18) for _ in range(size)]
        stay.append(torch.ones(2**18))
        if watched:
            gaps.at_peak()
        del blocks
        gaps.after_step()
    results.put((heap.own_memory() - before) >> 20)


@pytest.mark.ranks
@pytest.mark.skipif(heap._blocks_in_use() is None, reason="glibc 2.33 tells it")
def test_a_step_that_uses_more_leaves_no_gap() -> None:
    """Else batches of uneven length map their memory anew, step by step."""
    assert _in_process(_held_after_a_larger_step, False) < 50
    assert _in_process(_held_after_a_larger_step, True) == pytest.approx(1000, abs=50)


@pytest.mark.skipif(heap._blocks_in_use() is None, reason="glibc 2.33 tells it")
def test_blocks_in_use_are_counted() -> None:
    """Mapped or from the heap, and beyond the 4 GB that glibc's older function could count."""
    before = heap._blocks_in_use()
    untouched = torch.empty(5 * 2**30, dtype=torch.uint8)
    small = [torch.ones(2**10) for _ in range(1000)]
    during = heap._blocks_in_use()
    assert before is not None
    assert during is not None
    assert during - before == pytest.approx(untouched.numel() + 2**12 * len(small), rel=0.01)
    del untouched
    assert (heap._blocks_in_use() or 0) - before == pytest.approx(2**12 * len(small), rel=0.5)


def watched_steps() -> list[str]:
    """Return what two steps of training told of their memory."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeapGaps, "at_peak", lambda _: told.append("peak"))
        patch.setattr(HeapGaps, "after_step", lambda _: told.append("after"))
        engine = tiny_engine(0)
        do_step(engine)
        do_step(engine)
    return told


@pytest.mark.ranks
def test_training_tells_what_each_step_uses(tmp_path: Path) -> None:
    assert run_ranks(watched_steps, 1, tmp_path) == [["peak", "after", "peak", "after"]]
