"""Settings that do not fit the tasks that a run trains, which its data decide."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scimult.data.pairs import PairFile
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError
from scimult.training.config import PretrainConfig
from scimult.training.loss_config import (
    LOSS_OPTIONS,
    ContrastiveLoss,
    HeadConfig,
    InfoNCEConfig,
    LossConfig,
    TripletConfig,
)


def check_fit(config: PretrainConfig, sources: Sequence[PairFile | TargetFile]) -> None:
    """Check that the sources that a run samples use every setting of its loss.

    Raises
    ------
    ConfigError
        If a setting has no effect, or a task lacks the hard negatives that its loss needs.
    """
    tasks = sorted({source.task for source in sources})
    loss, listed = config.loss, config.data.hard_negatives
    pairs = sorted({source.task for source in sources if isinstance(source, PairFile)})
    without = [
        task
        for task in pairs
        if isinstance(own := loss.contrastive(task), TripletConfig)
        and own.negatives == "own"
        and isinstance(listed, list)
        and task not in listed
    ]
    if without:
        raise ConfigError(
            "negatives own of a triplet loss needs hard negatives, but data.hard_negatives does "
            "not list these tasks",
            value=without,
            fix="list them, or set negatives to all in their loss",
        )
    if loss.weighting == "gradnorm" and len(tasks) == 1:
        raise ConfigError(
            "loss.weighting gradnorm balances tasks, but the run trains only one",
            value=tasks[0],
            fix="leave it out, or add sources of other tasks",
        )
    defaults = LOSS_OPTIONS[loss.name]
    unused = [name for name, default in defaults.items() if getattr(loss, name) != default]
    if unused and not uses_default_loss(loss, tasks):
        raise ConfigError(
            f"no trained task uses loss.{' or loss.'.join(unused)}: loss.by_task gives each its "
            "own loss",
            value=tasks,
            fix="leave it out, or set it in loss.by_task",
        )
    if config.optimizer.learned_lr is not None and not learns(loss, tasks):
        raise ConfigError(
            "optimizer.learned_lr has no effect: no head, temperature, task weight or projection "
            "is learned",
            value=config.optimizer.learned_lr,
            fix="leave it out, or learn one of them",
        )


def uses_default_loss(loss: LossConfig, tasks: Collection[str]) -> bool:
    """Return whether a task has the loss ``loss.name`` with its options."""
    return any(task not in loss.by_task for task in tasks)


def learns(loss: LossConfig, tasks: Collection[str], projects: bool | None = None) -> bool:
    """Return whether a loss of these tasks has parameters of its own (`learned_parts`).

    ``projects`` says whether the run learns a projection; None: whether it may, because only the
    model tells whether widths differ.
    """
    teacher = loss.embedding_teacher
    if projects is None:
        projects = (
            teacher is not None and teacher.loss != "relational" and teacher.projection is not False
        )
    learned = any(_is_learned(loss.by_task.get(task, loss.default)) for task in tasks)
    return loss.weighting != "fixed" or learned or projects


def _is_learned(loss: ContrastiveLoss | HeadConfig) -> bool:
    return isinstance(loss, HeadConfig) or (
        isinstance(loss, InfoNCEConfig) and loss.learn_temperature
    )
