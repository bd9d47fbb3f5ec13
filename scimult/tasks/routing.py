"""From tasks to routes: which rows a model treats alike.

A route is an integer to the encoder and a name here. Names, not positions, decide which
weights serve a task when a model starts from another one.
"""

from __future__ import annotations

from typing import Literal

from scimult.tasks.catalogue import TaskSet
from scimult.types import Role

Routing = Literal["task", "format", "task_and_side"]


def route_names(tasks: TaskSet, routing: Routing) -> list[str]:
    """Return the names of the routes, in order.

    ``task``: one per task; ``format``: one per SciRepEval format among the tasks, so that
    tasks of a format share it; ``task_and_side``: two per task, ``task/query`` and
    ``task/candidate``.
    """
    if routing == "format":
        return list(dict.fromkeys(task.format for task in tasks))
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
        "task_and_side": f"{known.name}/{role}",
    }[routing]
    return route_names(tasks, routing).index(name)
