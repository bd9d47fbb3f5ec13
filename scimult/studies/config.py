"""The study file: a grid over overrides, more runs, seeds, and how all are evaluated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from scimult.checkpoints.merge import check_choice
from scimult.config import StrictConfig, apply_overrides, read_yaml, validate
from scimult.errors import ConfigError

# A run's name is part of folder and system names.
_NAME = re.compile(r"\w[\w.+-]*")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")
# Keys that the study sets for each of its runs.
_OWN = ("output", "seed")


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
    devices: list[int] | None = None

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
    """A merge of runs by ``scimult merge``, seed by seed."""

    models: list[str] = Field(default_factory=list)
    shares: list[float] = Field(default_factory=list)
    method: Literal["average", "task_vectors", "slerp"] = "average"
    base: str | None = None
    by_depth: tuple[float, float] | None = Field(None, description="first and last block")
    share_experts: bool = False
    experts: dict[str, str] = Field(default_factory=dict, description="by task, instead of models")
    variant: str | None = Field(None, description="of experts")

    @model_validator(mode="after")
    def _one_way(self) -> MergeConfig:
        if bool(self.models) == bool(self.experts):
            raise ValueError("a merge needs either models or experts by task")
        if self.models and not self.share_experts:
            shares = self.shares or [1.0] * len(self.models)
            check_choice(self.models, shares, self.method, self.base, self.by_depth)
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
    output: str
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


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read a study file; ``$NAME`` is replaced by the environment variable.

    Raises
    ------
    ConfigError
        If a key is unknown, or values are inconsistent.
    """
    tree = apply_overrides(read_yaml(path), overrides)
    study = validate(StudyConfig, _with_variables(tree, path), path)
    try:
        _check(study)
    except ConfigError as error:
        raise ConfigError(error.problem, path=path, value=error.value, fix=error.fix) from None
    return study


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
        text = value if isinstance(value, str) else json.dumps(value)
        overrides.append((f"{short}_{text}", [f"{name}={text}"]))
    return overrides


def _with_variables(value: Any, path: Path | str) -> Any:
    """Return a tree with environment variables expanded in its strings."""
    if isinstance(value, dict):
        return {key: _with_variables(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_variables(item, path) for item in value]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name.strip("{}") not in os.environ:
            fix = f"export {name.strip('{}')}=..."
            raise ConfigError("environment variable is not set", path=path, value=value, fix=fix)
    return os.path.expandvars(value)


def _check(study: StudyConfig) -> None:
    """Refuse errors that are visible without the files that a study names."""
    runs = study.all_runs()
    if not runs:
        raise ConfigError("study has no runs", fix="add a grid, or runs by name")
    for name, run in runs.items():
        _check_run(study, name, run, runs)
    if study.baseline not in runs:
        fix = f"use one of {', '.join(runs)}"
        raise ConfigError("the baseline is not a run of this study", value=study.baseline, fix=fix)
    if not runs[study.baseline].evaluate:
        fix = "choose a run that is evaluated, or remove evaluate: false"
        raise ConfigError("the baseline is never evaluated", value=study.baseline, fix=fix)
    ordered(runs)
    for name, run in runs.items():
        if run.after is not None:
            _check_base(study, name, run.after, runs)
    for text in (study.output, *(run.model or "" for run in runs.values())):
        if "," in text:
            fix = "use a path without a comma"
            raise ConfigError("paths must not contain a comma", value=text, fix=fix)


def _check_run(
    study: StudyConfig, name: str, run: RunConfig, runs: Mapping[str, RunConfig]
) -> None:
    if not _NAME.fullmatch(name):
        fix = "use letters, digits, . _ + -: it becomes a folder name"
        raise ConfigError("not a valid run name", value=name, fix=fix)
    if run.is_trained and run.config is None and study.config is None:
        fix = "set config for the run or for the study"
        raise ConfigError(f"run {name!r} has no configuration", fix=fix)
    for line in [*study.overrides, *run.overrides]:
        if line.partition("=")[0].strip() in _OWN:
            problem = f"the study sets output and seed of run {name!r}"
            raise ConfigError(problem, value=line, fix="use the study's keys output and seeds")
    for seeds in (study.seeds, run.seeds):
        if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
            raise ConfigError("seeds must be distinct", value=seeds, fix="list each seed once")
    for parent in parents(run):
        if parent not in runs:
            fix = f"use one of {', '.join(key for key in runs if key != name)}"
            raise ConfigError(f"run {name!r} needs a run that is missing", value=parent, fix=fix)


def _check_base(study: StudyConfig, name: str, base: str, runs: Mapping[str, RunConfig]) -> None:
    """Refuse a run whose base lacks a model for one of its seeds."""
    if runs[base].merge is not None:
        fix = "merge after training, or merge separately and use the result as model of both"
        raise ConfigError(f"run {name!r} would be trained from a merged model", value=base, fix=fix)
    known = seeds_of(study, base, runs)
    missing = [seed for seed in seeds_of(study, name, runs) if known and seed not in known]
    if missing:
        fix = f"add these seeds to {base}"
        raise ConfigError(f"run {name!r} has seeds that {base!r} lacks", value=missing, fix=fix)


def parents(run: RunConfig) -> list[str]:
    """Return the runs from whose models a run is made."""
    if run.merge is not None:
        return run.merge.parents
    return [] if run.after is None else [run.after]


def ordered(runs: Mapping[str, RunConfig]) -> list[str]:
    """Return the names of runs, each after those that it is made from.

    Raises
    ------
    ConfigError
        If runs depend on each other in a circle.
    """
    done: dict[str, None] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in chain:
            circle = " <- ".join((*chain[chain.index(name) :], name))
            fix = "let one of them start from another model"
            raise ConfigError("runs depend on each other", value=circle, fix=fix)
        for parent in parents(runs[name]):
            visit(parent, (*chain, name))
        done.setdefault(name)

    for name in runs:
        visit(name, ())
    return list(done)


def seeds_of(study: StudyConfig, name: str, runs: Mapping[str, RunConfig]) -> list[int]:
    """Return the seeds of a run; none for an existing model, or a merge of such models.

    A merged model has the seeds that all trained runs in it share.
    """
    run = runs[name]
    if run.model is not None:
        return []
    if run.is_trained:
        return study.seeds if run.seeds is None else run.seeds
    seeds = [own for parent in parents(run) if (own := seeds_of(study, parent, runs))]
    return [seed for seed in (seeds or [[]])[0] if all(seed in own for own in seeds)]
