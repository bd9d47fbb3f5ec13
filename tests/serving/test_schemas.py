"""Requests of extreme shapes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scimult.serving import schemas
from tests.serving.conftest import Running

_MANY = 20_000
WIDE: list[tuple[type[schemas.Strict], dict[str, Any], str]] = [
    (schemas.Search, {"where": {"venue": [[1]] * _MANY}}, "at most 10000 items"),
    (schemas.Search, {"where": {"venue": list(range(_MANY))}}, "at most 10000 items"),
    (schemas.Search, {"where": {f"c{n}": {"a": 1} for n in range(_MANY)}}, "at most 50 fields"),
    (schemas.Search, {"where": {f"c{n}": [{}] * 9000 for n in range(9)}}, "10000 values in all"),
    (schemas.Search, {"where": {f"c{n}": [{}] * 9000 for n in range(2)}}, "10000 values in all"),
    (schemas.Search, {f"k{n}": 1 for n in range(_MANY)}, "at most 50 fields"),
    (schemas.Tag, {"papers": [{f"k{n}": 1 for n in range(_MANY)}]}, "at most 50 fields"),
    (schemas.Search, {"only": [[1]] * _MANY}, "at most 10000 items"),
    (schemas.Encode, {"texts": [{}] * _MANY}, "at most 256 items"),
    (schemas.Match, {"papers": [{}], "candidates": [{}] * _MANY}, "at most 2000 items"),
]


@pytest.mark.parametrize(("kind", "body", "message"), WIDE)
def test_wide_bodies_have_few_errors(
    kind: type[schemas.Strict], body: dict[str, Any], message: str
) -> None:
    """A million errors of one request held up all others for half a minute."""
    with pytest.raises(ValidationError, match=message) as refused:
        kind.model_validate(body)
    assert refused.value.error_count() < 20


@pytest.mark.long
def test_too_many_values_of_a_filter_are_named(server: Running) -> None:
    body = {"text": "a", "where": {"year": list(range(10_001))}}
    problem = server.post("/search", body).json()["problem"]
    assert problem.startswith("where.year: List should have at most 10000 items")
    wide = server.post("/search", {"text": "a", "where": {f"c{n}": 1 for n in range(51)}}).json()
    assert wide["problem"] == "where: Object should have at most 50 fields"
    body = {"text": "a", "where": {"year": list(range(-7990, 2010))}}
    assert server.post("/search", body).status_code == 200


def test_null_is_no_text_as_in_files() -> None:
    """A draft without an abstract was refused where its writer said so."""
    paper = {"title": "a", "abstract": None}
    (one,) = schemas.Tag.model_validate({"papers": [paper]}).papers
    assert (one.title, one.abstract) == ("a", "")
    assert schemas.Recommend.model_validate(paper).abstract == ""
    assert schemas.LabelIn.model_validate({"name": "a", "definition": None}).definition == ""
    for body in ({"title": 1}, {"title": ["a"]}):
        with pytest.raises(ValidationError, match="valid string"):
            schemas.PaperIn.model_validate(body)
