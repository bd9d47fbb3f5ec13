"""From tasks to routes: which rows a model treats alike.

A route is an integer to the encoder and a name here. Names, not positions, decide which
weights serve a task when a model starts from another one.
"""

from __future__ import annotations

from typing import Literal, get_args

from scimult.tasks.catalogue import Format, Task, TaskSet
from scimult.types import Role

Routing = Literal["task", "format", "task_and_side", "format_and_side"]


def route_names(tasks: TaskSet, routing: Routing) -> list[str]:
    """Return the names of the routes, in order.

    ``task``: one per task; ``format``: one per SciRepEval format among the tasks, so that
    tasks of a format share it; ``task_and_side``: two per task, ``task/query`` and
    ``task/candidate``; ``format_and_side``: formats, with the papers that a search looks for
    among those of proximity (SciRepEval, Table 6: a query's code is [QRY], theirs [PRX]).
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
    """Return the number of the route that serves one side of a task.

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
    looked_for = task.format == "adhoc_search" and role == "candidate"
    return "proximity" if looked_for else task.format
