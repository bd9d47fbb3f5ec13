"""Select the sources of a run: the training files of its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError, one_of, suggest
from scimult.tasks import TaskSet
from scimult.training.config import DataConfig
from scimult.training.loss_config import HeadConfig


def select_sources(
    data: PreparedData, section: DataConfig, tasks: TaskSet, heads: Mapping[str, HeadConfig]
) -> list[PairFile | TargetFile]:
    """Return the training files that the configuration selects, all of known tasks.

    Targets are trained if ``heads`` has one for their task. The order is that of the folder,
    pairs first; for ``sequential`` sampling that of ``data.sources``. Files of tasks that
    ``data.hard_negatives`` does not list lose their hard negatives.

    Raises
    ------
    UnknownNameError, ConfigError
        If a source is not in the prepared folder, its task is not in the run's ``tasks``,
        or heads and targets do not match.
    """
    files: list[PairFile | TargetFile] = [*data.pairs("train"), *data.targets("train")]
    _check_heads(data, files, heads)
    for name in section.sources or ():
        matching = [file for file in files if name in (file.name, file.source)]
        names = {name for file in files for name in (file.source, file.name)}
        one_of("source in data.sources", name, names)
        if not any(_is_trained(file, heads) for file in matching):
            raise ConfigError(
                "a source of data.sources has only targets, and no head learns them",
                path=data.folder,
                value=name,
                fix=f"set loss.by_task: {{{matching[0].task}: {_kind(matching[0])}}}",
            )
    trained = [
        file
        for file in files
        if _is_trained(file, heads)
        and (section.sources is None or {file.name, file.source} & set(section.sources))
    ]
    for file in trained:
        if file.task not in tasks.names:
            known = ", ".join(tasks.names)
            raise ConfigError(
                f"source {file.source!r} has pairs or targets of a task that is not among tasks "
                f"({known}{suggest(file.task, tasks.names)})",
                path=data.folder,
                value=file.task,
                fix=f"add {{name: {file.task}}} to tasks, or list other sources in data.sources",
            )
    if section.sampling == "sequential" and section.sources is not None:
        order = section.sources
        trained.sort(
            key=lambda file: min(
                order.index(name) for name in (file.name, file.source) if name in order
            )
        )
    return _with_hard_negatives(trained, section.hard_negatives)


def _with_hard_negatives(
    files: list[PairFile | TargetFile], listed: bool | list[str]
) -> list[PairFile | TargetFile]:
    """Return the files, without the hard negatives of tasks that are not listed."""
    if listed is True:
        return files
    known = {file.task for file in files if isinstance(file, PairFile)}
    names = [one_of("task in data.hard_negatives", name, known) for name in listed or ()]
    return [
        file.without_negatives() if isinstance(file, PairFile) and file.task not in names else file
        for file in files
    ]


def _is_trained(file: PairFile | TargetFile, heads: Mapping[str, HeadConfig]) -> bool:
    return isinstance(file, PairFile) or file.task in heads


def _kind(file: PairFile | TargetFile) -> str:
    return file.kind if isinstance(file, TargetFile) else "info_nce"


def _check_heads(
    data: PreparedData, files: list[PairFile | TargetFile], heads: Mapping[str, HeadConfig]
) -> None:
    """Check that every head has targets of its kind in the folder."""
    for task, head in heads.items():
        kinds = {_kind(file) for file in files if file.task == task}
        if not kinds:
            targets = {file.task for file in files if isinstance(file, TargetFile)}
            raise ConfigError(
                f"loss.by_task gives {task!r} a head, but no source has targets for it",
                path=data.folder,
                value=f"targets of {', '.join(sorted(targets)) or 'no task'}",
                fix="give a source such targets in the data configuration and prepare again, or "
                f"leave loss.by_task.{task} out",
            )
        if kinds != {head.name}:
            fitting = ", ".join(sorted(kinds))
            raise ConfigError(
                f"loss.by_task.{task} is {head.name}, but the data of this task fit {fitting}",
                path=data.folder,
                value=head.name,
                fix=f"set loss.by_task.{task} to {fitting}",
            )
