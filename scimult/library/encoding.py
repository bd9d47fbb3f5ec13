"""Encoding for a library: its model and tasks, and papers for all tasks in one pass.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scimult.errors import ConfigError, DataError, SciMultError, one_of
from scimult.files import atomic_folder, only_writer
from scimult.inference.origin import sides_are_one, space_of
from scimult.library.manifest import TOKENIZER, VECTORS, Manifest, write_manifest
from scimult.library.state import State
from scimult.retrieval.shards import publish
from scimult.retrieval.space import Precision, Space
from scimult.tasks import ALL
from scimult.types import FloatArray, Role, Text

if TYPE_CHECKING:
    from scimult.inference import SciMult
    from scimult.inference.query_encoder import QueryEncoder


SETTINGS = ("pooling", "similarity", "normalise", "dims")


def sides_of(model: SciMult, tasks: Iterable[str] = ()) -> dict[str, Role]:
    """Return the tasks to encode papers for, with the papers' side in each; default: all.

    Raises
    ------
    ConfigError
        If a task has no papers, or tasks is a single string.
    UnknownNameError
        If the model does not know a task.
    """
    if isinstance(tasks, str):
        raise ConfigError("tasks is a string", value=tasks, fix="pass a list")
    possible = model.paper_sides("candidate")
    names = list(tasks) or list(possible)
    for task in names:
        if one_of("task", task, model.tasks.names) not in possible:
            raise ConfigError("task has no papers", value=task, fix="leave it out")
    return {task: possible[task] for task in possible if task in names}


def shared_sides(model: SciMult, sides: Mapping[str, Role]) -> tuple[str, ...]:
    """Return the tasks for which a paper's stored vector is also its query vector."""
    return tuple(task for task in sides if sides_are_one(model, task))


def spaces_of(
    model: SciMult | QueryEncoder, sides: Mapping[str, Role], precision: Precision
) -> dict[str, Space]:
    """Return the space of papers for each task."""
    return {task: space_of(model, task, role, precision) for task, role in sides.items()}


def folder_of(spaces: Mapping[str, Space]) -> str:
    """Return the folder name for spaces: a fingerprint of their origin."""
    text = json.dumps(sorted(space.fingerprint for space in spaces.values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_papers(
    model: SciMult, texts: Sequence[Text], sides: Mapping[str, Role]
) -> dict[str, FloatArray]:
    """Return the vectors of papers for each task, each of shape ``(N, D)``."""
    if len(sides) > 1 and dict(sides) == model.paper_sides("candidate"):
        return dict(model.encode(texts, task=ALL, role="candidate"))
    return {task: model.encode(texts, task=task, role=role) for task, role in sides.items()}


def reference_to(model: SciMult, path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference that reopens the model; a hub name stays a name."""
    path = path.resolve() if path.exists() else path
    overrides = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    return {"path": str(path), "name": model.name, "dtype": model.dtype, "settings": overrides}


def open_model(
    reference: Mapping[str, Any],
    path: Path | str | None = None,
    device: str | None = None,
    tokenizer: Path | None = None,
) -> SciMult:
    """Open a library's model, from ``path`` if it has moved.

    Raises
    ------
    DataError
        If the model is missing.
    """
    location = Path(path or reference["path"])
    if path is None and location.is_absolute() and not location.exists():
        fix = (
            "name its folder with --model (in Python: Library.open(..., model=...)); "
            "for later calls, too: scimult library migrate LIBRARY --model FOLDER --dtype "
            + reference["dtype"]
        )
        raise DataError("the library's model is missing", path=location, fix=fix)
    return open_other(location, device, reference["dtype"], reference["settings"], tokenizer)


def open_other(
    path: Path | str,
    device: str | None,
    dtype: str,
    settings: Mapping[str, Any] | None,
    tokenizer: Path | None = None,
) -> SciMult:
    """Open any model with `SciMult.from_pretrained`, importing torch."""
    from scimult.inference import SciMult

    return SciMult.from_pretrained(
        path, device=device, dtype=dtype, tokenizer=tokenizer, **(settings or {})
    )


def create_library(
    folder: Path,
    model: SciMult,
    path: Path,
    settings: Mapping[str, Any],
    tasks: Sequence[str],
    precision: Precision,
) -> None:
    """Write an empty library, atomically; ``path`` and ``settings`` will reopen the model.

    It is refused to readers until `Library.add` has put papers into it, or `sync` if that fails.

    Raises
    ------
    StorageError
        If the folder is not empty.
    ConfigError, UnknownNameError
        If the model does not have a task, or the task has no papers.
    """
    sides = sides_of(model, tasks)
    spaces = spaces_of(model, sides, precision)
    reference, shared = reference_to(model, path, settings), shared_sides(model, sides)
    manifest = Manifest(reference, folder_of(spaces), sides, shared, creating=True)
    with atomic_folder(folder) as temporary:
        for task, space in spaces.items():
            publish(temporary / VECTORS / manifest.vectors / f"{task}.{sides[task]}", space, [])
        model.save_tokenizer(temporary / VECTORS / manifest.vectors / TOKENIZER)
        write_manifest(temporary, manifest)


def withdraw_library(folder: Path) -> None:
    """Remove a library without papers, unless another process has begun to complete it."""
    with suppress(SciMultError), only_writer(folder):
        if not State(folder).live_N.any():
            shutil.rmtree(folder)
