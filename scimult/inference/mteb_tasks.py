"""MTEB's tasks on scientific texts, as data: ``mteb_tasks.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field

from scimult.config import StrictConfig, load_config
from scimult.errors import ConfigError, UnknownNameError
from scimult.progress import warn


class ListedTask(StrictConfig):
    """One MTEB task: its group, its type in MTEB, our task that encodes its texts, what it asks."""

    group: str
    type: str
    route: str
    what: str

    @property
    def has_documents(self) -> bool:
        """Whether queries are compared with documents, which are encoded as candidates."""
        return "Retrieval" in self.type or "Reranking" in self.type


class TaskList(StrictConfig):
    """Descriptions of groups, and tasks by their MTEB names."""

    groups: dict[str, str]
    tasks: dict[str, ListedTask] = Field(min_length=1)


@cache
def scientific_tasks() -> TaskList:
    """Read the list."""
    source = resources.files("scimult.inference") / "mteb_tasks.yaml"
    with resources.as_file(source) as path:
        return load_config(TaskList, Path(path))


def find_tasks(names: Sequence[str], languages: Sequence[str]) -> list[Any]:
    """Return the MTEB tasks of these names or groups, each once, without their data.

    Parameters
    ----------
    names : sequence of str
        Names of any MTEB tasks, or groups of the list.
    languages : sequence of str
        ISO 639-3 codes; of a multilingual task, only subsets in these alone.

    Raises
    ------
    UnknownNameError
        If there is no such task or group; the message suggests one.
    ConfigError
        If a task has nothing in these languages.
    """
    import mteb

    listed = scientific_tasks()
    installed = mteb.get_tasks(exclude_superseded=False, exclude_private=False)
    known = dict.fromkeys(task.metadata.name for task in installed)
    wanted: dict[str, None] = {}
    for name in names:
        if name in listed.groups:
            members = [key for key, task in listed.tasks.items() if task.group == name]
            wanted.update(dict.fromkeys(key for key in members if key in known))
            absent = [key for key in members if key not in known]
            if absent:
                warn(f"skipped, not in this version of MTEB: {', '.join(absent)}")
        elif name in known:
            wanted[name] = None
        else:
            raise UnknownNameError("task of MTEB or group", name, _like(name, listed, list(known)))
    tasks = []
    for name in wanted:
        try:
            task = mteb.get_task(name, languages=list(languages), exclusive_language_filter=True)
        except ValueError as error:  # MTEB found no subset
            available = ", ".join(mteb.get_task(name).metadata.languages)
            problem = f"{name} has nothing in {', '.join(languages)}"
            raise ConfigError(problem, fix=f"request one of {available}") from error
        tasks.append(task)
    return tasks


def _like(name: str, listed: TaskList, known: Sequence[str]) -> list[str]:
    """Return all groups, and the MTEB tasks that may be meant."""
    bare = _letters(name)
    parts = [other for other in known if bare and bare in _letters(other)]
    close = get_close_matches(name, known, n=3)
    return [*listed.groups, *dict.fromkeys([*parts[:5], *close])]


def _letters(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum())
