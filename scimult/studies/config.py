"""The sections of a study file: grid, runs, seeds, how all are launched and evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scimult.checkpoints.merge import check_choice
from scimult.config import StrictConfig, string_override
from scimult.errors import ConfigError


class LaunchConfig(StrictConfig):
    """How training is launched.

    Attributes
    ----------
    ranks : int
        Processes per training run; several are launched by ``deepspeed``.
    parallel : int
        Number of simultaneous jobs: in all on CPUs, on each GPU (or group) with ``devices``.
    devices : list of int, optional
        GPUs; each job uses as many as a run has ranks.
    """

    ranks: int = Field(1, ge=1)
    parallel: int = Field(1, ge=1)
    devices: list[Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _whole_slots(self) -> LaunchConfig:
        if self.devices is None:
            return self
        if not self.devices or len(set(self.devices)) < len(self.devices):
            raise ValueError("launch.devices must list each GPU once, and at least one")
        if len(self.devices) % self.ranks:
            gpus = len(self.devices)
            raise ValueError(f"{gpus} GPUs are not a multiple of launch.ranks {self.ranks}")
        return self


class EvaluationConfig(StrictConfig):
    """A suite to score every run on; ``sets`` selects from it, ``overrides`` change it."""

    suite: str
    data: str
    sets: list[str] = Field(default_factory=list)
    overrides: list[str] = Field(default_factory=list)


class MergeConfig(StrictConfig):
    """A merge of runs by ``scimult merge``: a model per seed, or one of all seeds."""

    models: list[str] = Field(default_factory=list)
    shares: list[float] = Field(default_factory=list)
    method: Literal["average", "task_vectors", "slerp"] = "average"
    base: str | None = None
    by_depth: tuple[float, float] | None = Field(None, description="first and last block")
    share_experts: bool = False
    experts: dict[str, str] = Field(default_factory=dict, description="by task, instead of models")
    variant: str | None = Field(None, description="of experts")
    all_seeds: bool = Field(False, description="each model's share is spread over its seeds")

    @model_validator(mode="after")
    def _one_way(self) -> MergeConfig:
        if bool(self.models) == bool(self.experts):
            raise ValueError("a merge needs either models or experts by task")
        if len(set(self.models)) < len(self.models):
            raise ValueError("models lists a run twice: give it a larger share")
        if self.all_seeds and (self.share_experts or self.experts or self.method == "slerp"):
            raise ValueError("all_seeds is only valid for whole models, without slerp")
        if self.models and not self.share_experts:
            shares = self.shares or [1.0] * len(self.models)
            # How many seeds a model has is not known here: two stand for any number.
            n = 2 if self.all_seeds else 1
            check_choice(self.models * n, shares * n, self.method, self.base, self.by_depth)
        elif self.method != "average" or self.base is not None or self.by_depth is not None:
            raise ValueError("method, base and by_depth are only valid for whole models")
        if self.share_experts and len(self.models) != 1:
            raise ValueError("share_experts needs exactly one model")
        if self.experts and self.shares:
            raise ValueError("shares is not valid with experts")
        if self.variant is not None and not self.experts:
            raise ValueError("variant is only valid with experts")
        return self

    @property
    def normal_form(self) -> MergeConfig:
        """The same merge with explicit shares, of an average with a sum of 1."""
        shares = self.shares or [1 / max(1, len(self.models))] * len(self.models)
        total = sum(shares)
        if self.method != "task_vectors" and total > 0:
            shares = [share / total for share in shares]
        return self.model_copy(update={"shares": shares})

    @property
    def parents(self) -> list[str]:
        """The runs to merge, each once."""
        base = [] if self.base is None else [self.base]
        return list(dict.fromkeys([*self.models, *self.experts.values(), *base]))


class RunConfig(StrictConfig):
    """One run: trained, merged from other runs, or an existing model.

    Attributes
    ----------
    config : str, optional
        A configuration of one run or of a curriculum; by default the study's.
    overrides : list of str
        ``dotted.key=value``, applied after those of the study.
    seeds : list of int, optional
        By default the study's.
    after : str, optional
        A run whose model, of the same seed, is the base of this one.
    stage : str, optional
        Last stage of a curriculum to train.
    model : str, optional
        An existing model to evaluate unchanged.
    merge : MergeConfig, optional
        The merge that makes the model.
    options : dict
        Evaluation options that override the study's: ``pooling``, ``similarity``, ``dtype``.
    evaluate : bool
        False for a stepping stone, which other runs start from or merge, and which gets no scores.
    """

    config: str | None = None
    overrides: list[str] = Field(default_factory=list)
    seeds: list[int] | None = None
    after: str | None = Field(None, min_length=1)
    stage: str | None = None
    model: str | None = None
    merge: MergeConfig | None = None
    options: dict[str, str] = Field(default_factory=dict)
    evaluate: bool = True

    @model_validator(mode="after")
    def _one_kind(self) -> RunConfig:
        if self.model is not None and self.merge is not None:
            raise ValueError("a run has either model or merge, not both")
        if self.is_trained:
            return self
        own = ("config", "overrides", "seeds", "after", "stage")
        given = [name for name in own if getattr(self, name)]
        if given:
            raise ValueError(f"{', '.join(given)} is only valid for trained runs")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether the run is trained, not merged or an existing model."""
        return self.model is None and self.merge is None


Axis = dict[str, list[str]] | list[Any]


class StudyConfig(StrictConfig):
    """Everything that determines the result of a study.

    Attributes
    ----------
    name, output : str
        Its title, and the folder for all output.
    baseline : str
        The run that others are compared with.
    seeds : list of int
        Each run is trained once per seed.
    config, overrides
        Configuration of trained runs, and overrides for all of them.
    grid : dict
        Axes: a name to overrides by the name of each value, or a dotted key to a list of
        its values. There is a run for every combination, named by its values.
    runs : dict
        More runs, by name.
    confidence : float
        Confidence of intervals; tests use 1 minus it as their level.
    """

    name: str
    output: str = Field(min_length=1)
    baseline: str
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    config: str | None = None
    overrides: list[str] = Field(default_factory=list)
    grid: dict[str, Axis] = Field(default_factory=dict)
    runs: dict[str, RunConfig] = Field(default_factory=dict)
    launch: LaunchConfig = Field(default_factory=LaunchConfig)
    evaluate: list[EvaluationConfig] = Field(min_length=1)
    options: dict[str, str] = Field(default_factory=dict)
    confidence: float = Field(0.95, ge=0.5, le=0.999)

    def all_runs(self) -> dict[str, RunConfig]:
        """Return the runs of the grid, then the others, by name.

        Raises
        ------
        ConfigError
            If two runs have the same name.
        """
        runs = expand(self.grid)
        for name, run in self.runs.items():
            if name in runs:
                fix = "rename the one under runs"
                raise ConfigError("a run has the name of a grid run", value=name, fix=fix)
            runs[name] = run
        return runs


def expand(grid: Mapping[str, Axis]) -> dict[str, RunConfig]:
    """Return a run for each combination of the axes' values, the last axis varying fastest.

    Raises
    ------
    ConfigError
        If an axis is empty, or two runs would have the same name.
    """
    if not grid:
        return {}
    runs: dict[str, RunConfig] = {}
    for point in product(*(_values(name, axis) for name, axis in grid.items())):
        name = "-".join(value for value, _ in point)
        if name in runs:
            fix = "rename the values so that all combinations have different names"
            raise ConfigError("two runs of the grid have the same name", value=name, fix=fix)
        runs[name] = RunConfig(overrides=[line for _, lines in point for line in lines])
    return runs


def _values(name: str, axis: Axis) -> list[tuple[str, list[str]]]:
    """Return the name and overrides of each value of an axis."""
    if not axis:
        fix = "list its values, or remove the axis"
        raise ConfigError("a grid axis has no value", value=name, fix=fix)
    if isinstance(axis, dict):
        return list(axis.items())
    short = name.rpartition(".")[2]
    overrides = []
    for value in axis:
        if isinstance(value, (dict, list)):
            fix = "name the axis, and give each of its values a name and overrides"
            raise ConfigError(f"axis {name} has a value that is not a scalar", value=value, fix=fix)
        if isinstance(value, str):
            overrides.append((f"{short}_{value}", [string_override(name, value)]))
        else:
            text = json.dumps(value)
            overrides.append((f"{short}_{text}", [f"{name}={text}"]))
    return overrides
