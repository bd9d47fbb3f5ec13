"""What papers' further fields become: columns of numbers, texts and lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scimult.errors import ConfigError
from scimult.library import Library
from tests.library.conftest import paper

Make = Callable[..., Library]


def test_a_column_of_lists_and_single_values_is_one_of_lists(make: Make) -> None:
    one, two = paper(0, keywords=["graph", "tree"]), paper(1, keywords="graph")
    library = make([two, one, paper(2, keywords=[])])
    assert library.state.manifest.columns["keywords"] == "VARCHAR[]"
    assert library.ids(where={"keywords": "graph"}) == ["p001", "p000"]


def test_sets_are_lists_and_what_pandas_lacks_is_absent(make: Make) -> None:
    library = make([paper(0, keywords={"tree", "graph"}, seen=pd.NaT, size=pd.NA)])
    (row,) = library.state.papers.table(library.state.live_rows()).to_pylist()
    assert row["keywords"] == ["graph", "tree"]
    assert set(library.state.manifest.columns) == {"keywords"}


def test_values_that_json_lacks_are_text_without_quotes(make: Make) -> None:
    library = make([paper(0, day=date(2020, 1, 2), price=Decimal("1.50"), code=2**63)])
    (row,) = library.state.papers.table(library.state.live_rows()).to_pylist()
    assert (row["day"], row["price"]) == ("2020-01-02", "1.50")
    assert row["code"] == str(2**63)
    assert library.ids(where="day >= '2020'") == ["p000"]


def test_objects_are_stored_as_json_that_filters_can_read(make: Make) -> None:
    library = make([paper(0, journal={"name": "Zürich", "issn": 7}), paper(1, journal=None)])
    (row, _) = library.state.papers.table(library.state.live_rows()).to_pylist()
    assert row["journal"] == '{"issn": 7, "name": "Zürich"}'
    assert library.ids(where="journal LIKE '%\"Zürich\"%'") == ["p000"]
    # Another order of the fields is no change.
    assert library.add([paper(0, journal={"issn": 7, "name": "Zürich"})]).unchanged == 1


def test_whole_numbers_and_others_share_a_column(make: Make) -> None:
    library = make([paper(0, size=2.5), paper(1, size=3)])
    library.add([paper(2, size=4), paper(3, size=4.25)])
    assert library.state.manifest.columns["size"] == "DOUBLE"
    table = library.state.papers.table(library.state.live_rows()).to_pylist()
    assert [row["size"] for row in table] == [2.5, 3, 4, 4.25]
    assert library.ids(where={"size": (3, 4)}) == ["p001", "p002"]
    assert library.ids(where={"size": 4}) == ["p002"]


def test_filters_read_the_librarys_own_columns_whatever_its_folder_is_called(make: Make) -> None:
    """DuckDB takes ``year=1980`` for a column, and ``lib[1]`` for a pattern matching ``lib1``."""
    library = make([paper(0, year=2001), paper(1, year=1980)], "year=1980/it's/lib[1]")
    make([paper(2, year=1980)], "year=1980/it's/lib1")
    assert library.ids(where="year = 1980") == ["p001"]
    assert library.ids(where={"year": 2001}) == ["p000"]
    library.remove(library.ids(where="year < 2000"))
    assert library.ids() == ["p000"]


def test_columns_may_be_called_anything(make: Make) -> None:
    library = make([paper(0, **{'size 5" x': 3, "year": 2001}), paper(1, year=1980)])
    assert library.ids(where={'size 5" x': 3}) == ["p000"]
    assert library.ids(where='"size 5"" x" IS NULL') == ["p001"]
    assert library.ids(where="year > 2000 -- recent") == ["p000"]


MIXED = [
    paper(0, codes=[7, "a", True], code="x", day=date(2020, 1, 2)),
    paper(1, codes=["b", 0.5], code=7, day=None),
    paper(2, codes=[], code=None, day=date(2021, 1, 2)),
    paper(3, codes=None, code="7 a", day=date(2020, 1, 2)),
]


@pytest.mark.parametrize("value", [7, "a", True, 0.5, "true", "z", np.float64(0.5), 7.0])
def test_one_value_of_a_column_of_lists_is_one_of_its_items(make: Make, value: Any) -> None:
    """Items are stored as text, numbers and truths as in JSON: so are the values of a filter."""
    library = make(MIXED)
    text = value if isinstance(value, str) else json.dumps(value)
    table = library.state.papers.table(library.state.live_rows()).to_pylist()
    wanted = [row["id"] for row in table if text in (row["codes"] or [])]
    for given in (value, [value], np.array([value]), {value}):
        assert library.ids(where={"codes": given}) == wanted


def test_columns_of_text_take_numbers_and_dates(make: Make) -> None:
    library = make(MIXED)
    assert library.ids(where={"code": 7}) == ["p001"]
    assert library.ids(where={"code": ["x", 7, None]}) == ["p000", "p001", "p002"]
    assert library.ids(where={"day": date(2020, 1, 2)}) == ["p000", "p003"]


def test_a_date_is_found_however_its_column_prints_it(make: Make) -> None:
    library = make([*MIXED, paper(4, day=datetime(2020, 1, 2)), paper(5, day="unknown")])
    second = ["p000", "p003", "p004"]
    for wanted in (date(2020, 1, 2), datetime(2020, 1, 2), pd.Timestamp("2020-01-02")):
        assert library.ids(where={"day": wanted}) == second
    assert library.ids(where={"day": [date(2020, 1, 2), "unknown"]}) == [*second, "p005"]


@pytest.mark.usefixtures("in_los_angeles")
def test_a_moment_has_the_same_year_on_all_machines(make: Make) -> None:
    """DuckDB takes this machine's time zone (duckdb/duckdb#15192), where it is still 2019."""
    library = make([paper(0, seen="2020-01-01T00:30:00Z"), paper(1, seen="2019-12-31T00:30:00Z")])
    assert library.ids(where="year(seen::TIMESTAMPTZ) = 2020") == ["p000"]


def test_ranges_of_dates_are_over_dates(make: Make) -> None:
    noon = datetime(2020, 1, 3, 12)
    library = make([*MIXED, paper(4, day=noon), paper(5, day=datetime(2020, 1, 4))])
    for first, last, wanted in (
        (date(2020, 1, 3), None, ["p002", "p004", "p005"]),
        (None, date(2020, 1, 3), ["p000", "p003"]),
        (pd.Timestamp("2020-01-03"), np.datetime64("2020-01-04"), ["p004", "p005"]),
    ):
        assert library.ids(where={"day": (first, last)}) == wanted
    with pytest.raises(ConfigError, match=r"cannot filter: .* Fix: give values"):
        library.ids(where={"code": (date(2020, 1, 3), None)})


@pytest.mark.parametrize(
    ("column", "start", "end"),
    [
        ("year", 2022, 2019),
        ("year", 2.5, 2),
        ("code", "b", "a"),
        ("day", date(2021, 1, 2), date(2020, 1, 2)),
        ("day", "2021-01-02", "2020-01-02"),
    ],
)
def test_a_range_that_ends_before_it_starts_is_refused(
    make: Make, column: str, start: Any, end: Any
) -> None:
    library = make([*MIXED, paper(4, year=2020)])
    with pytest.raises(ConfigError) as caught:
        library.ids(where={column: (start, end)})
    told = f'"{column}": the range ends before it starts (value: {(start, end)!r}). Fix: '
    assert str(caught.value).startswith(told)
    library.ids(where={column: (end, start)})
    library.ids(where={column: (start, start)})


def test_a_range_of_numbers_may_be_given_as_texts(make: Make) -> None:
    """DuckDB reads them as numbers, so 9 comes before 10."""
    assert make([paper(0, size=9), paper(1, size=11)]).ids(where={"size": ("9", "10")}) == ["p000"]


NAT = np.datetime64("NaT", "ns")


@pytest.mark.parametrize("none", [np.nan, np.float32("nan"), pd.NA, pd.NaT, NAT])
def test_what_is_missing_in_a_frame_is_absent_in_a_filter(make: Make, none: Any) -> None:
    library = make(MIXED)
    assert library.ids(where={"code": none}) == ["p002"]
    assert library.ids(where={"code": [7, none]}) == ["p001", "p002"]
    with pytest.raises(ConfigError, match="does not take a range"):
        library.ids(where={"code": ("a", none)})


@pytest.mark.parametrize("value", [{"from": 1}, iter(["x"]), object()])
@pytest.mark.parametrize("column", ["code", "codes"])
def test_what_is_no_value_is_refused(make: Make, column: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot filter: .* Fix: give values"):
        make(MIXED).ids(where={column: value})
