"""Units made ahead: the same ones, each made once, errors where they belong."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from scimult.data.batches import Unit
from scimult.errors import DataError
from scimult.training.ahead import UnitsAhead


class Maker:
    """Notes which units it made and in which thread; one of them is broken."""

    def __init__(self, broken: int | None = None) -> None:
        self.made: list[int] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self._broken = broken

    def __call__(self, number: int) -> Unit:
        if number == self._broken:
            raise DataError("broken", value=number)
        self.made.append(number)
        self.threads.add(threading.get_ident())
        if number == 1:
            self.started.set()
        return cast(Any, f"unit {number}")


def test_units_come_in_order_and_are_made_once() -> None:
    maker = Maker()
    ahead = UnitsAhead(maker, 5)
    assert [ahead(number) for number in range(5)] == [f"unit {number}" for number in range(5)]
    assert maker.made == [0, 1, 2, 3, 4]
    assert len(maker.threads) == 1
    assert threading.get_ident() not in maker.threads


def test_the_next_one_is_made_while_nobody_asks() -> None:
    maker = Maker()
    ahead = UnitsAhead(maker, 5)
    ahead(0)
    assert maker.started.wait(timeout=60)


def test_a_run_that_goes_on_in_the_middle_gets_its_own_units() -> None:
    ahead = UnitsAhead(Maker(), 9)
    assert [ahead(number) for number in (4, 5, 2, 2, 8)] == [
        f"unit {number}" for number in (4, 5, 2, 2, 8)
    ]


def test_an_error_is_raised_for_its_own_unit() -> None:
    ahead = UnitsAhead(Maker(broken=2), 4)
    assert [ahead(0), ahead(1)] == ["unit 0", "unit 1"]
    with pytest.raises(DataError, match="broken"):
        ahead(2)
    assert ahead(3) == "unit 3"
