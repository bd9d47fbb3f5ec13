"""Add a task to a trained model, starting from a copy of a known task's weights."""

from __future__ import annotations

from pathlib import Path

from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.pretrained import Pretrained, read_folder, tokenizer_for
from scimult.checkpoints.reading import find_model_folder
from scimult.checkpoints.warm_start import warm_start
from scimult.config import validate
from scimult.errors import ConfigError
from scimult.models import Encoder
from scimult.models.config import ROUTED
from scimult.tasks import Task, TaskSet, route_names, route_of
from scimult.types import Role


def grow_task(path: Path | str, task: Task, like: str) -> Pretrained:
    """Return the model of a run, a saved model or a Hugging Face folder with one more task.

    Everything selected by task (experts, adapters, codes, ...) gets one more entry, a copy of
    that of the known task ``like``; embeddings of the known tasks stay bit-identical, except with
    fusion, which mixes one adapter more.

    Raises
    ------
    ConfigError
        If the model already knows that task, or reads instructions and the task has none.
    UnknownNameError
        If the model does not know ``like``.
    """
    folder = find_model_folder(path)
    old, weights = read_folder(folder)
    known = TaskSet(old.tasks)
    if task.name in known:
        raise ConfigError(
            "model already knows this task", path=folder, value=task.name, fix="choose a new name"
        )
    known[like]
    new = _with_task(old, task)
    model = Encoder(new.encoder)
    model.initialise(0)
    warm_start(model, weights, folder, _sources(old, new, like))
    return Pretrained(model, tokenizer_for(new.encoder, folder), new)


def _with_task(old: PretrainedConfig, task: Task) -> PretrainedConfig:
    tree = old.model_dump()
    tree["tasks"].append(task.model_dump())
    routes = route_names(TaskSet([*old.tasks, task]), old.routing)
    for name in ROUTED:
        if tree["encoder"][name] is not None:
            tree["encoder"][name]["count"] = len(routes)
    tree["provenance"] = {"grown": task.name, "from": old.provenance}
    return validate(PretrainedConfig, tree, "grown model")


def _sources(old: PretrainedConfig, new: PretrainedConfig, like: str) -> list[int]:
    """Return, for each route of the new model, the old route that it copies."""
    before, known = old.routes, TaskSet(old.tasks)
    sources = []
    for name in new.routes:
        if name in before:
            sources.append(before.index(name))
            continue
        role: Role = "candidate" if name.endswith("/candidate") else "query"
        sources.append(route_of(known, old.routing, like, role))
    return sources
