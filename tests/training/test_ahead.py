"""Micro-batches built ahead: the same ones, each built once, with errors where they belong."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from scimult.data.batches import MicroBatch
from scimult.errors import DataError
from scimult.training.module import MicroBatchesAhead


class Maker:
    """Records which micro-batches it built and in which thread; one of them is broken."""

    def __init__(self, broken: int | None = None) -> None:
        self.made: list[int] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self._broken = broken

    def __call__(self, number: int) -> MicroBatch:
        if number == self._broken:
            raise DataError("broken", value=number)
        self.made.append(number)
        self.threads.add(threading.get_ident())
        if number == 1:
            self.started.set()
        return cast(Any, f"micro-batch {number}")


def test_micro_batches_come_in_order_and_are_built_once() -> None:
    maker = Maker()
    ahead = MicroBatchesAhead(maker, 5)
    assert [ahead(number) for number in range(5)] == [
        f"micro-batch {number}" for number in range(5)
    ]
    assert maker.made == [0, 1, 2, 3, 4]
    assert len(maker.threads) == 1
    assert threading.get_ident() not in maker.threads


def test_the_next_one_is_built_before_it_is_requested() -> None:
    maker = Maker()
    ahead = MicroBatchesAhead(maker, 5)
    ahead(0)
    assert maker.started.wait(timeout=60)


def test_a_run_resumed_in_the_middle_gets_its_own_micro_batches() -> None:
    ahead = MicroBatchesAhead(Maker(), 9)
    assert [ahead(number) for number in (4, 5, 2, 2, 8)] == [
        f"micro-batch {number}" for number in (4, 5, 2, 2, 8)
    ]


def test_an_error_is_raised_for_its_own_micro_batch() -> None:
    ahead = MicroBatchesAhead(Maker(broken=2), 4)
    assert [ahead(0), ahead(1)] == ["micro-batch 0", "micro-batch 1"]
    with pytest.raises(DataError, match="broken"):
        ahead(2)
    assert ahead(3) == "micro-batch 3"
