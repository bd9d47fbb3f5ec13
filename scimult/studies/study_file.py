"""Read a study file, and refuse errors that need none of the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scimult.config import apply_overrides, read_yaml, unset_variables, validate
from scimult.errors import ConfigError, suggest
from scimult.studies.config import RunConfig, StudyConfig
from scimult.studies.lineage import check_lineage
from scimult.studies.trials import on_one_line

# A run's name is part of folder and system names.
_NAME = re.compile(r"\w[\w.+-]*")
# Keys that the study sets for each of its runs.
_OWN = ("output", "seed")
# Keys that `after` sets.
_ORIGIN = re.compile(r"model\.(base|tokenizer|architecture)\b")


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


def _with_variables(value: Any, path: Path | str) -> Any:
    """Return a tree with environment variables expanded in its strings."""
    if isinstance(value, dict):
        return {key: _with_variables(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_variables(item, path) for item in value]
    if not isinstance(value, str) or os.path.exists(value):  # a $ may be part of a path's name
        return value
    for name in unset_variables(value):
        fix = f"export {name}=..."
        raise ConfigError("environment variable is not set", path=path, value=value, fix=fix)
    return os.path.expandvars(value)


def _check(study: StudyConfig) -> None:
    """Refuse errors that are visible without the files that a study names."""
    runs = study.all_runs()
    if not runs:
        raise ConfigError("study has no runs", fix="add a grid, or runs by name")
    problems = []
    for check in (_check_runs, _check_baseline, check_lineage, _check_paths):
        try:
            check(study, runs)
        except ConfigError as error:
            problems.append(error)
    if len(problems) > 1:
        raise ConfigError("\n  ".join(["invalid study:", *map(on_one_line, problems)]))
    if problems:
        raise problems[0]


def _check_runs(study: StudyConfig, runs: Mapping[str, RunConfig]) -> None:
    for name, run in runs.items():
        _check_run(study, name, run)


def _check_baseline(study: StudyConfig, runs: Mapping[str, RunConfig]) -> None:
    if study.baseline not in runs:
        fix = f"use one of {', '.join(runs)}{suggest(study.baseline, runs)}"
        raise ConfigError("the baseline is not a run of this study", value=study.baseline, fix=fix)
    if not runs[study.baseline].evaluate:
        fix = "choose a run that is evaluated, or remove evaluate: false"
        raise ConfigError("the baseline is never evaluated", value=study.baseline, fix=fix)


def _check_paths(study: StudyConfig, runs: Mapping[str, RunConfig]) -> None:
    for text in (study.output, *(run.model or "" for run in runs.values())):
        if "," in text:
            fix = "use a path without a comma"
            raise ConfigError("paths must not contain a comma", value=text, fix=fix)


def _check_run(study: StudyConfig, name: str, run: RunConfig) -> None:
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
    origin = next((line for line in run.overrides if _ORIGIN.match(line.strip())), None)
    if run.after is not None and origin is not None:
        problem = f"run {name!r} starts from the model of {run.after!r}, and sets another"
        raise ConfigError(problem, value=origin, fix="leave out this override, or after")
    for seeds in (study.seeds, run.seeds):
        if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
            raise ConfigError("seeds must be distinct", value=seeds, fix="list each seed once")
