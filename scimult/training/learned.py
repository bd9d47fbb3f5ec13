"""What is trained beside the encoder, used by the loss and not part of embeddings.

A *part* is a module whose forward takes nothing and returns one new tensor, its *value*: a
temperature, the weights of a head, a projection. Losses see values, never modules. So the
embedding cache stops at values as it stops at embeddings, and carries their gradients further
back with the last chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from scimult.errors import ConfigError
from scimult.losses import Temperature
from scimult.models import Encoder
from scimult.training.config import PretrainConfig

MODULE = "learned"
TEMPERATURE = "temperature"
Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class LearnedPart:
    """A module, and the tasks whose losses use its value."""

    module: nn.Module
    tasks: frozenset[str]


class LearnedParts:
    """All parts of a run by name, below the encoder while it trains.

    There, DeepSpeed shards, clips, steps, saves and loads their parameters with all others.

    Parameters
    ----------
    model : Encoder
        Gets the parts as its module ``learned``, if there are any.
    parts : mapping of name to LearnedPart
        A part is updated in steps that hold one of its tasks, and stays bit-identical in others.

    Raises
    ------
    ConfigError
        If a name has a dot, which separates the names of modules.
    """

    def __init__(self, model: Encoder, parts: Mapping[str, LearnedPart]) -> None:
        for name in parts:
            if "." in name:
                fix = "name the task without a dot"
                raise ConfigError("a trained part cannot have this name", value=name, fix=fix)
        self._parts = dict(parts)
        if parts:
            modules = {name: part.module for name, part in parts.items()}
            model.add_module(MODULE, nn.ModuleDict(modules))

    def names(self, tasks: Collection[str]) -> list[str]:
        """Return the names of the parts that some of these tasks use."""
        return [name for name, part in self._parts.items() if part.tasks.intersection(tasks)]

    def values(self, tasks: Collection[str]) -> dict[str, Tensor]:
        """Return the values that some of these tasks use; all ranks must ask for the same tasks."""
        return {name: self._parts[name].module() for name in self.names(tasks)}

    def weights(self, weight_of_task: Mapping[str, float]) -> dict[str, float]:
        """Return the weight of the task of every part that serves one task alone."""
        return {
            name: weight_of_task.get(*part.tasks, 1.0)
            for name, part in self._parts.items()
            if len(part.tasks) == 1
        }


def part_of(parameter_name: str) -> str | None:
    """Return the part that a parameter of an encoder in training belongs to, if to any."""
    first, _, rest = parameter_name.partition(".")
    return rest.partition(".")[0] if first == MODULE else None


def take_learned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove from ``weights`` what an encoder does not have; return it by ``part.parameter``."""
    names = [name for name in weights if part_of(name) is not None]
    return {name.removeprefix(f"{MODULE}."): weights.pop(name) for name in names}


def learned_parts(config: PretrainConfig, model: Encoder, tasks: Collection[str]) -> LearnedParts:
    """Give the model what the losses of a run train beside it.

    Parameters
    ----------
    config : PretrainConfig
        Says which.
    model : Encoder
        The encoder, on the host.
    tasks : collection of str
        Those that the run trains.
    """
    parts: dict[str, LearnedPart] = {}
    if config.loss.learn_temperature:
        parts[TEMPERATURE] = LearnedPart(_temperature(config), frozenset(tasks))
    return LearnedParts(model, parts)


def _temperature(config: PretrainConfig) -> Temperature:
    assert config.loss.temperature is not None
    return Temperature(config.loss.temperature)


def learned_numbers(config: PretrainConfig, taken: Mapping[str, Tensor]) -> dict[str, float]:
    """Return what `take_learned` found, as far as it is single numbers worth a note."""
    numbers: dict[str, float] = {}
    if config.loss.learn_temperature:
        learned = _temperature(config)
        learned.load_state_dict({"log_ratio": taken[f"{TEMPERATURE}.log_ratio"]})
        numbers[TEMPERATURE] = learned().item()
    return numbers
