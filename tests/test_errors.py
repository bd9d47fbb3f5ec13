from __future__ import annotations

import pickle
from typing import Any

import pytest

from scimult.data.tables import MissingColumnError
from scimult.errors import (
    DataError,
    SciMultError,
    UnknownNameError,
    quoted_in_line,
    shown,
    suggest,
)


def test_message_names_place_value_and_fix() -> None:
    error = DataError("title is empty", path="papers.jsonl", line=7, value="", fix="write a title")
    assert str(error) == "papers.jsonl:7: title is empty (value: ''). Fix: write a title"


def test_message_without_place_is_the_problem_alone() -> None:
    assert str(SciMultError("no papers")) == "no papers"


@pytest.mark.parametrize(
    "error",
    [
        DataError("is empty", path="a.tsv", line=3, value=[], fix="add a row"),
        UnknownNameError("task", "serach", ["search"], path="a.yaml"),
        MissingColumnError(["id"], "lacks a column", path="a.csv"),
    ],
)
def test_processes_can_send_each_other_errors(error: SciMultError) -> None:
    """One that cannot be read ends a pool of processes."""
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), vars(sent)) == (type(error), str(error), vars(error))


def test_path_without_line() -> None:
    assert str(SciMultError("is empty", path="a.tsv")) == "a.tsv: is empty"


def test_long_values_are_cut() -> None:
    message = str(SciMultError("bad", value="x" * 500))
    assert len(message) < 150
    assert message.endswith("…)")


def test_what_others_say_is_one_short_line() -> None:
    assert quoted_in_line("  two\nlines\t ") == "two lines"
    assert quoted_in_line("x" * 300) == "x" * 300
    assert quoted_in_line("x" * 301) == "x" * 299 + "…"


def test_a_value_is_shown_as_python_writes_it() -> None:
    values = ([1, "a'b", None], {"a": [True, {}], 2: ("x",)}, [], {}, {1, 2}, b"x", "", 1.5)
    for value in values:
        assert shown(value) == repr(value)


def test_a_value_without_end_is_cut_soon() -> None:
    bomb: list[Any] = ["x"]
    for _ in range(40):
        bomb = [bomb] * 10
    circle: dict[str, Any] = {}
    circle["again"] = circle
    for value in (bomb, circle, ["x" * 10**7] * 10**6, 2**100_000):
        assert len(str(SciMultError("bad", value=value))) < 150
    assert "100,001 bits" in shown(2**100_000)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("serach", " (did you mean 'search'?)"), ("regression", ""), ("search", None)],
)
def test_suggest(name: str, hint: str | None) -> None:
    expected = " (did you mean 'search'?)" if hint is None else hint
    assert suggest(name, ["search", "link_prediction"]) == expected


def test_unknown_name_lists_the_known_ones() -> None:
    error = UnknownNameError("task", "serach", ["search", "classification"])
    assert "unknown task (value: 'serach')" in str(error)
    assert "classification, search (did you mean 'search'?)" in str(error)


def test_unknown_name_in_an_empty_collection() -> None:
    assert "(none registered)" in str(UnknownNameError("loss", "infonce", []))


def test_every_user_error_can_be_caught_as_one() -> None:
    with pytest.raises(SciMultError):
        raise UnknownNameError("task", "x", ["y"])
