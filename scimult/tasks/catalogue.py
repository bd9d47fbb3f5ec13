"""Tasks as data: name, instruction, kinds of text, format; their order is the expert index.

Each side of a task, query or candidate, has a named route.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml
from pydantic import model_validator

from scimult.config import StrictConfig
from scimult.errors import ConfigError, one_of
from scimult.types import Kind, Role

Format = Literal["classification", "regression", "proximity", "adhoc_search"]

# In the order of the released checkpoints' experts.
DEFAULT = ("search", "link_prediction", "classification")

# Means every task that a paper is embedded for; no task has this name.
ALL: Literal["all"] = "all"

_NAME = re.compile(r"\w[\w.-]*")


class Task(StrictConfig):
    """One task of the multi-task model (SciMult, section 3.1).

    Kinds and format that are left out are those of the catalogue's task of this name. Under another
    name both kinds are papers, and the format follows from the kinds.
    """

    name: str
    instruction: str = ""
    query_kind: Kind = "paper"
    candidate_kind: Kind = "paper"
    format: Format = "proximity"

    @model_validator(mode="before")
    @classmethod
    def _with_what_is_left_out(cls, given: Any) -> Any:
        entries = {entry["name"]: entry for entry in _entries()}
        if isinstance(given, str):
            kinds = "" if given in entries else ", query_kind: query, candidate_kind: paper"
            # pydantic cannot print half a character, as JSON can hold.
            name = given if _NAME.fullmatch(given) else repr(given)
            raise ValueError(f"a task is a mapping, such as {{name: {name}{kinds}}}")
        if not isinstance(given, dict):
            return given
        known = next((entry for name, entry in entries.items() if name == given.get("name")), {})
        rest = {key: value for key, value in known.items() if key != "instruction"} | given
        default: Format = "proximity"
        if rest.get("query_kind") == "query":
            default = "adhoc_search"
        elif rest.get("candidate_kind") == "label":
            default = "classification"
        return rest | {"format": rest.get("format", default)}


class TaskSet:
    """The ordered tasks that a model knows; a task's position is its expert index.

    Raises
    ------
    ConfigError
        If two tasks share a name, one has none, is called ``all`` or has other characters than
        letters, digits, ``_``, ``.`` and ``-`` (``/`` separates a task from its side), or there is
        no task.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.name: task for task in tasks}
        if not tasks or len(self._tasks) != len(tasks):
            names = [task.name for task in tasks]
            raise ConfigError("tasks need distinct names, and at least one", value=names)
        for name in self._tasks:
            if not _NAME.fullmatch(name):
                fix = "use letters, digits, _, . and -, such as ad_hoc_search"
                raise ConfigError("not a task's name", value=name, fix=fix)
        if ALL in self._tasks:
            raise ConfigError(
                "no task can be called all: the name means all tasks", fix="rename it"
            )

    @property
    def names(self) -> list[str]:
        """Names in expert order."""
        return list(self._tasks)

    def __getitem__(self, name: str) -> Task:
        """Return the task called ``name``.

        Raises
        ------
        UnknownNameError
            If it is not in the set.
        """
        return self._tasks[one_of("task", name, self._tasks)]

    def kind(self, name: str, role: Role) -> Kind:
        """Return the kind of text on one side of a task.

        Raises
        ------
        UnknownNameError
            If the task is not in the set, or ``role`` is not a side.
        """
        one_of("role", role, get_args(Role))
        return self[name].query_kind if role == "query" else self[name].candidate_kind

    def check_labels(self, name: str) -> None:
        """Check that a task ranks labels for papers.

        Raises
        ------
        ConfigError, UnknownNameError
            If it does not, or is not in the set.
        """
        if (self[name].query_kind, self[name].candidate_kind) != ("paper", "label"):
            fix = "use a task that ranks labels for papers, such as classification"
            raise ConfigError("task does not rank labels for papers", value=name, fix=fix)

    def paper_sides(self, role: Role) -> dict[str, Role]:
        """Return the side of papers in each task that has papers; ``role`` if both sides do."""
        sides: dict[str, Role] = {}
        for task in self:
            kinds: dict[Role, Kind] = {
                "query": task.query_kind,
                "candidate": task.candidate_kind,
            }
            with_papers = [side for side, kind in kinds.items() if kind == "paper"]
            if with_papers:
                sides[task.name] = role if role in with_papers else with_papers[0]
        return sides

    def subset(self, names: Sequence[str]) -> TaskSet:
        """Return the named tasks, in the order given."""
        return TaskSet([self[name] for name in names])

    def __repr__(self) -> str:
        return f"TaskSet({', '.join(self._tasks)})"

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks


def default_tasks() -> TaskSet:
    """Return search, link_prediction and classification, as in the SciMult paper."""
    return catalogue().subset(DEFAULT)


def named_tasks(names: Sequence[str]) -> TaskSet:
    """Return tasks by name, from the catalogue or else as new paper-to-paper tasks.

    Raises
    ------
    ConfigError
        If a name is repeated, or there is none.
    """
    known = catalogue()
    return TaskSet([known[name] if name in known else Task(name=name) for name in names])


def catalogue() -> TaskSet:
    """Return all known tasks, those of SciMult first."""
    return TaskSet([Task(**entry) for entry in _entries()])


@cache
def _entries() -> list[dict[str, str]]:
    text = resources.files("scimult.tasks").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, str]] = yaml.safe_load(text)
    return entries


Routing = Literal["task", "format", "task_and_side", "format_and_side"]


def route_names(tasks: TaskSet, routing: Routing) -> list[str]:
    """Return the names of the routes, in order.

    ``task``: one per task; ``format``: one per SciRepEval format, shared by its tasks;
    ``task_and_side``: two per task, ``task/query`` and ``task/candidate``; ``format_and_side``:
    one per format, where a search's candidates use proximity's (SciRepEval, Table 6: the code of a
    query is [QRY], that of its candidates [PRX]).
    """
    if routing == "format":
        return list(dict.fromkeys(task.format for task in tasks))
    if routing == "format_and_side":
        sides = [(task, role) for task in tasks for role in get_args(Role)]
        return list(dict.fromkeys(_format_of(task, role) for task, role in sides))
    if routing == "task_and_side":
        return [f"{name}/{side}" for name in tasks.names for side in ("query", "candidate")]
    return tasks.names


def route_of(tasks: TaskSet, routing: Routing, task: str, role: Role) -> int:
    """Return the number of the route of one side of a task.

    Raises
    ------
    UnknownNameError
        If the task is not in the set.
    """
    known = tasks[task]
    name = {
        "task": known.name,
        "format": known.format,
        "format_and_side": _format_of(known, role),
        "task_and_side": f"{known.name}/{role}",
    }[routing]
    return route_names(tasks, routing).index(name)


def tells_sides(routing: Routing) -> bool:
    """Return whether queries and candidates of a task may take different routes."""
    return routing.endswith("_and_side")


def _format_of(task: Task, role: Role) -> Format:
    """Return the format whose weights serve one side of a task."""
    is_search_candidate = task.format == "adhoc_search" and role == "candidate"
    return "proximity" if is_search_candidate else task.format
