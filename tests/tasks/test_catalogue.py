"""What a task is that a configuration only names."""

from __future__ import annotations

import pytest

from scimult.config import StrictConfig, validate
from scimult.errors import ConfigError
from scimult.tasks import Task, TaskSet, catalogue
from scimult.tasks.catalogue import route_names


class _Run(StrictConfig):
    tasks: list[Task]


def test_a_name_of_the_catalogue_has_its_kinds_and_format() -> None:
    """``{name: search}`` compared papers, and shared the weights of proximity."""
    for known in catalogue():
        assert Task(name=known.name) == known.model_copy(update={"instruction": ""})
    tasks = TaskSet([Task(name=name) for name in catalogue().names])
    formats = ["adhoc_search", "proximity", "classification", "regression"]
    assert route_names(tasks, "format") == formats
    other = Task(name="search", query_kind="paper", format="proximity")
    assert (other.query_kind, other.format) == ("paper", "proximity")


@pytest.mark.parametrize(
    ("query_kind", "candidate_kind", "expected"),
    [
        ("query", "paper", "adhoc_search"),
        ("paper", "label", "classification"),
        ("paper", "paper", "proximity"),
    ],
)
def test_the_format_of_a_new_task_follows_from_its_kinds(
    query_kind: str, candidate_kind: str, expected: str
) -> None:
    tree = {"name": "own", "query_kind": query_kind, "candidate_kind": candidate_kind}
    assert Task.model_validate(tree).format == expected
    assert Task.model_validate(tree | {"format": "regression"}).format == "regression"


def test_names_alone_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(_Run, {"tasks": ["search", "reviewing"]})
    known, new = str(caught.value).splitlines()[1:]
    assert known.endswith("tasks.0: a task is a mapping, such as {name: search}")
    assert new.endswith("such as {name: reviewing, query_kind: query, candidate_kind: paper}")
