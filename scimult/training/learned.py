"""Parameters that are trained with the encoder but used only by the loss.

A *part* is a module whose forward takes nothing and returns one new tensor, its *value*: a
temperature, the weights of a head, a projection. Losses see values, never modules, so that the
embedding cache can stop at values as it stops at embeddings, and propagate their gradients with
the last chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from scimult.errors import ConfigError
from scimult.losses import LogVariance, TaskWeights, Temperature
from scimult.models import Encoder
from scimult.models.heads import LinearHead
from scimult.training.config import PretrainConfig
from scimult.training.loss_config import InfoNCEConfig, LossConfig

MODULE = "learned"
TEMPERATURE, HEAD, PROJECTION = "temperature", "head", "projection"
LOG_VARIANCE, TASK_WEIGHTS = "log_variance", "task_weights"
Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class LearnedPart:
    """A module and the tasks whose losses use its value."""

    module: nn.Module
    tasks: frozenset[str]


class LearnedParts:
    """All parts of a run by name, attached to the encoder during training.

    There, as the module ``learned``, DeepSpeed shards, clips, steps, saves and loads their
    parameters with all others. A part is updated in steps that include one of its tasks, and stays
    bit-identical in others.

    Raises
    ------
    ConfigError
        If a name has a dot, which separates the names of modules.
    """

    def __init__(self, model: Encoder, parts: Mapping[str, LearnedPart]) -> None:
        for name in parts:
            if "." in name:
                fix = "rename the task"
                raise ConfigError(
                    "names of trained parts cannot contain a dot", value=name, fix=fix
                )
        self._parts = dict(parts)
        if parts:
            modules = {name: part.module for name, part in parts.items()}
            model.add_module(MODULE, nn.ModuleDict(modules))

    def names(self, tasks: Collection[str]) -> list[str]:
        """Return the names of the parts that any of these tasks uses."""
        return [name for name, part in self._parts.items() if part.tasks.intersection(tasks)]

    def values(self, tasks: Collection[str]) -> dict[str, Tensor]:
        """Return the values that any of these tasks uses; all ranks must pass the same tasks."""
        return {name: self.value(name) for name in self.names(tasks)}

    def value(self, name: str) -> Tensor:
        """Return the value of one part; all ranks must request the same."""
        value: Tensor = self._parts[name].module()
        return value

    def weights(self, weight_of_task: Mapping[str, float]) -> dict[str, float]:
        """Return, for every part of a single task, that task's weight."""
        return {
            name: weight_of_task.get(next(iter(part.tasks)), 1.0)
            for name, part in self._parts.items()
            if len(part.tasks) == 1
        }


def part_of(parameter_name: str) -> str | None:
    """Return the part to which a parameter of an encoder in training belongs, if any."""
    first, _, rest = parameter_name.partition(".")
    return rest.partition(".")[0] if first == MODULE else None


def take_learned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the learned parts from ``weights``; return them by ``part.parameter``."""
    names = [name for name in weights if part_of(name) is not None]
    return {name.removeprefix(f"{MODULE}."): weights.pop(name) for name in names}


def temperature_name(task: str, options: LossConfig) -> str:
    """Return the name of a task's temperature, if it is learned."""
    return f"{TEMPERATURE}/{task}" if task in options.by_task else TEMPERATURE


def head_name(task: str) -> str:
    """Return the name of a task's head."""
    return f"{HEAD}/{task}"


def log_variance_name(task: str) -> str:
    """Return the name of the log variance of a task's loss."""
    return f"{LOG_VARIANCE}/{task}"


def learned_parts(
    config: PretrainConfig,
    model: Encoder,
    tasks: Collection[str],
    outputs: Mapping[str, int] | None = None,
    projection: LearnedPart | None = None,
) -> LearnedParts:
    """Attach the parts to a model that the losses of a run on these tasks need.

    ``outputs`` are the numbers of outputs of each task's head; ``projection`` is the map to a
    teacher's vectors, if one is learned.
    """
    parts: dict[str, LearnedPart] = {}
    for name, temperature in _temperatures(config.loss, tasks).items():
        using = {task for task in tasks if temperature_name(task, config.loss) == name}
        parts[name] = LearnedPart(temperature, frozenset(using - set(config.loss.heads)))
    for number, (task, count) in enumerate((outputs or {}).items()):
        (seed,) = np.random.SeedSequence([config.seed, 3, number]).generate_state(1)
        head = LinearHead(model.config.width, count, int(seed))
        parts[head_name(task)] = LearnedPart(head, frozenset({task}))
    if config.loss.weighting == "uncertainty":
        for task in tasks:
            parts[log_variance_name(task)] = LearnedPart(LogVariance(), frozenset({task}))
    if config.loss.weighting == "gradnorm":
        parts[TASK_WEIGHTS] = LearnedPart(TaskWeights(len(tasks)), frozenset(tasks))
    if projection is not None:
        parts[PROJECTION] = projection
    return LearnedParts(model, parts)


def _temperatures(options: LossConfig, tasks: Collection[str]) -> dict[str, Temperature]:
    """Return the learned temperatures by name, with their initial values."""
    losses = {temperature_name(task, options): options.by_task.get(task) for task in tasks}
    return {
        name: Temperature(loss.temperature)
        for name, own in losses.items()
        if isinstance(loss := own or options.default, InfoNCEConfig) and loss.learn_temperature
    }


def learned_numbers(config: PretrainConfig, learned: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the temperatures and log variances among the tensors of `take_learned`."""
    numbers: dict[str, float] = {}
    tasks = [task.name for task in config.tasks]
    for name, temperature in _temperatures(config.loss, tasks).items():
        # Tasks that the run does not train have none.
        if (log_ratio := learned.get(f"{name}.log_ratio")) is not None:
            temperature.load_state_dict({"log_ratio": log_ratio})
            numbers[name] = temperature().item()
    variances = {name: value for name, value in learned.items() if name.startswith(LOG_VARIANCE)}
    return numbers | {name.removesuffix(".value"): v.item() for name, v in variances.items()}
