"""Tasks, the catalogue of known ones, and the routes that serve them."""

from scimult.tasks.catalogue import (
    ALL,
    Routing,
    Task,
    TaskSet,
    catalogue,
    default_tasks,
    named_tasks,
    route_names,
    route_of,
    tells_sides,
)

__all__ = [
    "ALL",
    "Routing",
    "Task",
    "TaskSet",
    "catalogue",
    "default_tasks",
    "named_tasks",
    "route_names",
    "route_of",
    "tells_sides",
]
