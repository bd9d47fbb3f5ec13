"""The file of a study: a grid over overrides, more runs, seeds, and how all are evaluated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig, apply_overrides, read_yaml, validate
from scimult.errors import ConfigError

# A run's name is part of folders, and of the name of a system.
_NAME = re.compile(r"\w[\w.+-]*")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")
# What the study decides for each of its runs.
_OWN = ("output", "seed")


class LaunchConfig(StrictConfig):
    """How training is started.

    Attributes
    ----------
    ranks : int
        Processes of one training run; more than one are started by ``deepspeed``.
    parallel : int
        Jobs at the same time, on CPUs.
    devices : list of int, optional
        GPUs; each job has as many of them as a run has ranks, and so many jobs run at once.
    """

    ranks: int = Field(1, ge=1)
    parallel: int = Field(1, ge=1)
    devices: list[int] | None = None

    @model_validator(mode="after")
    def _whole_slots(self) -> LaunchConfig:
        if self.devices is None:
            return self
        if self.parallel != 1:
            raise ValueError("give launch.parallel for CPUs or launch.devices for GPUs, not both")
        if not self.devices or len(set(self.devices)) < len(self.devices):
            raise ValueError("launch.devices lists each GPU once, and at least one")
        if len(self.devices) % self.ranks:
            raise ValueError(
                f"launch.devices has {len(self.devices)} GPUs: not a multiple of launch.ranks "
                f"{self.ranks}"
            )
        return self


class EvaluationConfig(StrictConfig):
    """A suite that every run is scored on; ``sets`` are some of it, ``overrides`` change it."""

    suite: str
    data: str
    sets: list[str] = Field(default_factory=list)
    overrides: list[str] = Field(default_factory=list)


class MergeConfig(StrictConfig):
    """A model made of others by ``scimult merge``; runs are named, and merged seed by seed."""

    models: list[str] = Field(default_factory=list)
    shares: list[float] = Field(default_factory=list)
    method: Literal["average", "task_vectors", "slerp"] = "average"
    base: str | None = None
    share_experts: bool = False
    experts: dict[str, str] = Field(default_factory=dict, description="by task, instead of models")
    variant: str | None = Field(None, description="of experts")

    @model_validator(mode="after")
    def _one_way(self) -> MergeConfig:
        if bool(self.models) == bool(self.experts):
            raise ValueError("a merge has models, or experts by task")
        return self

    @property
    def parents(self) -> list[str]:
        """The runs that are merged, each once."""
        base = [] if self.base is None else [self.base]
        return list(dict.fromkeys([*self.models, *self.experts.values(), *base]))


class RunConfig(StrictConfig):
    """One run: trained, merged of others, or a model as it is.

    Attributes
    ----------
    config : str, optional
        A configuration of one run or of a curriculum; by default the study's.
    overrides : list of str
        ``dotted.key=value``, after those of the study.
    seeds : list of int, optional
        By default the study's.
    after : str, optional
        A run whose model, of the same seed, is the base of this one.
    stage : str, optional
        Of a curriculum: the last stage that is trained.
    model : str, optional
        A model that is evaluated as it is.
    merge : MergeConfig, optional
        What it is merged of.
    options : dict
        How the model is evaluated, over the study's: ``pooling``, ``similarity``, ``dtype``.
    evaluate : bool
        False for a stepping stone: other runs start from it or merge it, and it gets no score.
    """

    config: str | None = None
    overrides: list[str] = Field(default_factory=list)
    seeds: list[int] | None = None
    after: str | None = None
    stage: str | None = None
    model: str | None = None
    merge: MergeConfig | None = None
    options: dict[str, str] = Field(default_factory=dict)
    evaluate: bool = True

    @model_validator(mode="after")
    def _one_kind(self) -> RunConfig:
        if self.model is not None and self.merge is not None:
            raise ValueError("a run is a model as it is or a merge, not both")
        if self.is_trained:
            return self
        own = ("config", "overrides", "seeds", "after", "stage")
        given = [name for name in own if getattr(self, name)]
        if given:
            raise ValueError(f"{', '.join(given)} belongs to runs that are trained")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether it is trained, not merged or there."""
        return self.model is None and self.merge is None


Axis = dict[str, list[str]] | list[Any]


class StudyConfig(StrictConfig):
    """Everything that decides the result of a study.

    Attributes
    ----------
    name, output : str
        Its title, and the folder of all it writes.
    baseline : str
        The run that others are compared with.
    seeds : list of int
        Each run is trained once with each.
    config, overrides
        What trained runs start from, and changes to all of them.
    grid : dict
        Axes: a name to overrides by the name of each value, or a dotted key to a list of
        its values. There is a run for every combination, named by its values.
    runs : dict
        More runs, by name.
    confidence : float
        Of intervals; tests use 1 minus this.
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
                fix = "rename the one below runs"
                raise ConfigError("a run has the name of one of the grid", value=name, fix=fix)
            runs[name] = run
        return runs


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read the file of a study; ``$NAME`` stands for a variable of the environment.

    Raises
    ------
    ConfigError
        If a key is unknown, or what it says cannot be.
    """
    tree = apply_overrides(read_yaml(path), overrides)
    study = validate(StudyConfig, _with_variables(tree, path), path)
    try:
        _check(study)
    except ConfigError as error:
        raise ConfigError(error.problem, path=path, value=error.value, fix=error.fix) from None
    return study


def expand(grid: Mapping[str, Axis]) -> dict[str, RunConfig]:
    """Return a run for each combination of one value of every axis, the last axis fastest.

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
            fix = "name the values so that the names of all combinations differ"
            raise ConfigError("two runs of the grid have the same name", value=name, fix=fix)
        runs[name] = RunConfig(overrides=[line for _, lines in point for line in lines])
    return runs


def _values(name: str, axis: Axis) -> list[tuple[str, list[str]]]:
    """Return name and overrides of each value of an axis."""
    if not axis:
        fix = "list its values, or leave it out"
        raise ConfigError("an axis of the grid has no value", value=name, fix=fix)
    if isinstance(axis, dict):
        return list(axis.items())
    short = name.rpartition(".")[2]
    overrides = []
    for value in axis:
        if isinstance(value, (dict, list)):
            fix = "give the axis a name, and below it a name and overrides for each value"
            raise ConfigError(f"a value of axis {name} is no single value", value=value, fix=fix)
        text = value if isinstance(value, str) else json.dumps(value)
        overrides.append((f"{short}_{text}", [f"{name}={text}"]))
    return overrides


def _with_variables(value: Any, path: Path | str) -> Any:
    """Return a tree with the environment's variables put into its texts."""
    if isinstance(value, dict):
        return {key: _with_variables(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_variables(item, path) for item in value]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name.strip("{}") not in os.environ:
            fix = f"export {name.strip('{}')}=..."
            raise ConfigError("a variable is not set", path=path, value=value, fix=fix)
    return os.path.expandvars(value)


def _check(study: StudyConfig) -> None:
    """Refuse what can be seen without the files that a study names."""
    runs = study.all_runs()
    if not runs:
        raise ConfigError("a study without runs", fix="give it a grid, or runs by name")
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
            fix = "use a path without one"
            raise ConfigError("a comma ends the path of a model", value=text, fix=fix)


def _check_run(
    study: StudyConfig, name: str, run: RunConfig, runs: Mapping[str, RunConfig]
) -> None:
    if not _NAME.fullmatch(name):
        fix = "use letters, digits, . _ + -: it is the name of a folder"
        raise ConfigError("not a name of a run", value=name, fix=fix)
    if run.is_trained and run.config is None and study.config is None:
        fix = "give it config, or the study one for all"
        raise ConfigError(f"run {name!r} has no configuration", fix=fix)
    for line in [*study.overrides, *run.overrides]:
        if line.partition("=")[0].strip() in _OWN:
            fix = "list seeds and give output beside the runs"
            raise ConfigError(
                f"the study decides output and seed of run {name!r}", value=line, fix=fix
            )
    for seeds in (study.seeds, run.seeds):
        if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
            raise ConfigError("seeds are listed once each", value=seeds, fix="list one or more")
    for parent in parents(run):
        if parent not in runs:
            fix = f"use one of {', '.join(key for key in runs if key != name)}"
            raise ConfigError(
                f"run {name!r} is made of one that is not there", value=parent, fix=fix
            )


def _check_base(study: StudyConfig, name: str, base: str, runs: Mapping[str, RunConfig]) -> None:
    """Refuse a run that starts after one which has no model of each of its seeds."""
    if runs[base].merge is not None:
        fix = "merge after training, or merge by hand and give the model to both"
        raise ConfigError(f"run {name!r} would be trained from a merged model", value=base, fix=fix)
    known = seeds_of(study, base, runs)
    missing = [seed for seed in seeds_of(study, name, runs) if known and seed not in known]
    if missing:
        fix = f"give {base} these seeds too"
        raise ConfigError(f"run {name!r} has seeds that {base!r} has not", value=missing, fix=fix)


def parents(run: RunConfig) -> list[str]:
    """Return the runs whose models a run is made of."""
    if run.merge is not None:
        return run.merge.parents
    return [] if run.after is None else [run.after]


def ordered(runs: Mapping[str, RunConfig]) -> list[str]:
    """Return the names of runs, each after those that it is made of.

    Raises
    ------
    ConfigError
        If runs are made of each other.
    """
    done: dict[str, None] = {}

    def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in chain:
            circle = " <- ".join((*chain[chain.index(name) :], name))
            fix = "let one of them start from something else"
            raise ConfigError("runs are made of each other", value=circle, fix=fix)
        for parent in parents(runs[name]):
            visit(parent, (*chain, name))
        done.setdefault(name)

    for name in runs:
        visit(name, ())
    return list(done)


def seeds_of(study: StudyConfig, name: str, runs: Mapping[str, RunConfig]) -> list[int]:
    """Return the seeds of a run; none for a model as it is, or one merged of such.

    A merged model has the seeds that all trained runs it is made of have.
    """
    run = runs[name]
    if run.model is not None:
        return []
    if run.is_trained:
        return study.seeds if run.seeds is None else run.seeds
    seeds = [own for parent in parents(run) if (own := seeds_of(study, parent, runs))]
    return [seed for seed in (seeds or [[]])[0] if all(seed in own for own in seeds)]
