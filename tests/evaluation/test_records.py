"""Records of benchmark files: what is read of them, and names that come twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.data.records import Record, Rejects
from scimult.errors import DataError
from scimult.evaluation.records import by_name, paper, query_paper
from scimult.types import Text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"title": "A", "abstract": "B"}, Text("paper", "A", "B")),
        ({"title": "A", "abstract": "B", "text": "C"}, Text("paper", "A", "B")),
        ({"title": "A", "text": "C"}, Text("paper", "A", "C")),
        ({"title": "", "abstract": "B"}, Text("paper", "", "B")),
        # The hub's copies of BEIR have a title that is empty.
        ({"title": "", "text": "C"}, Text("paper", "C")),
        ({"text": "C"}, Text("paper", "C")),
    ],
)
def test_a_paper_that_asks(fields: dict[str, str], expected: Text) -> None:
    assert query_paper(Record(Path("q.jsonl"), 1, fields)) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"title": "", "abstract": ""}, "'title' and 'abstract' are both empty"),
        ({"title": "A", "abstract": "", "text": ""}, None),
        ({"title": "", "text": " "}, "field 'text' is empty"),
        ({}, "missing field 'text'"),
    ],
)
def test_a_paper_that_asks_nothing_is_refused(fields: dict[str, str], message: str | None) -> None:
    record = Record(Path("q.jsonl"), 3, fields)
    if message is None:
        assert query_paper(record) == Text("paper", "A")
    else:
        with pytest.raises(DataError, match=f"q.jsonl:3: {message}"):
            query_paper(record)


def test_a_text_under_another_name_is_not_lost() -> None:
    for body, other in (("text", "abstract"), ("abstract", "text")):
        record = Record(Path("c.jsonl"), 1, {"title": "A", other: "B"})
        with pytest.raises(DataError, match=f"text under '{other}'.*Fix: name it '{body}'"):
            paper(record, body)
        assert paper(Record(Path("c.jsonl"), 1, {"title": "A", other: " "}), body).title == "A"


def test_a_name_twice_in_one_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "papers.json"
    path.write_text('{"a": {"title": "A"}, "b": {"title": "B"}, "a": {"title": "C"}}')
    with pytest.raises(DataError, match="duplicate id .value: 'a'"):
        by_name(path, lambda record: record.text("title"), Rejects())
    rejects = Rejects(skip_bad=True)
    assert by_name(path, lambda record: record.text("title"), rejects) == {"a": "A", "b": "B"}
    assert sum(rejects.counts.values()) == 1
