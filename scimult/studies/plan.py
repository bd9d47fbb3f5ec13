"""The plan of a study: its file, read and checked, with all trials and suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scimult.checkpoints import Pretrained, PretrainedConfig
from scimult.checkpoints.merge import check_alike
from scimult.checkpoints.reading import chosen_config, find_model_folder, read_config
from scimult.errors import ConfigError, DataError, SciMultError
from scimult.evaluation.harness import missing_sets
from scimult.evaluation.suites import Suite, load_suite
from scimult.hardware import usable_device
from scimult.studies.config import EvaluationConfig, RunConfig, StudyConfig
from scimult.studies.lineage import parents
from scimult.studies.study_file import load_study
from scimult.studies.trials import (
    Inputs,
    Trial,
    by_run,
    key_of,
    make_trials,
    on_one_line,
    read_mark,
    refuse,
    weights_of,
)
from scimult.training.curriculum import check_folder, rehearse
from scimult.training.folder import CONFIG_NAME
from scimult.training.origin import Origin, origin_of


@dataclass(frozen=True)
class SuitePlan:
    """A suite, and the section of the study that requests it."""

    section: EvaluationConfig
    suite: Suite


@dataclass(frozen=True)
class Plan:
    """Everything that a study does: trials by key, each after those it is made from, and suites."""

    study: StudyConfig
    trials: Mapping[str, Trial]
    suites: Mapping[str, SuitePlan]

    @property
    def out(self) -> Path:
        """The output folder."""
        return Path(self.study.output)

    @cached_property
    def runs(self) -> dict[str, RunConfig]:
        """All runs by name."""
        return self.study.all_runs()

    def run_of(self, trial: Trial) -> RunConfig:
        """Return a trial's run."""
        return self.runs[trial.run]

    def made_from(self, trial: Trial, name: str) -> list[Trial]:
        """Return the trials of a run from whose models a trial is made: one, or all its seeds'."""
        merge = self.run_of(trial).merge
        if merge is not None and merge.all_seeds:
            return by_run(self.trials)[name]
        return [self.trials.get(key_of(name, trial.seed)) or self.trials[name]]

    def parents(self, trial: Trial) -> list[Trial]:
        """Return the trials from whose models a trial is made."""
        return [
            parent for name in parents(self.run_of(trial)) for parent in self.made_from(trial, name)
        ]

    def suites_of(self, trial: Trial) -> list[str]:
        """Return the names of the suites that a trial is scored on; none for a stepping stone."""
        return list(self.suites) if self.run_of(trial).evaluate else []

    def inputs(self, trial: Trial) -> Inputs:
        """Return the weights that a trial is made from."""
        return weights_of(self.parents(trial))

    def options(self, trial: Trial) -> dict[str, str]:
        """Return the evaluation options of a trial's model."""
        return {**self.study.options, **self.run_of(trial).options}

    def system(self, trial: Trial) -> str:
        """Return a trial's model in the syntax of ``scimult evaluate --model``."""
        options = [f"{key}={value}" for key, value in self.options(trial).items()]
        return ",".join([f"{trial.key}={trial.model}", *options])

    def results(self, suite: str) -> Path:
        """Return the folder of a suite's results."""
        return self.out / "results" / suite

    @property
    def logs(self) -> Path:
        """The folder of all job logs."""
        return self.out / "logs"


def make_plan(path: Path | str, overrides: Sequence[str] = ()) -> Plan:
    """Read a study file, and the configurations and suites that it names.

    Raises
    ------
    ConfigError, UnknownNameError
        If a key, a run, a suite or a set is unknown, or two runs are the same.
    DataError
        If a suite's data is missing.
    """
    study = load_study(path, overrides)
    return Plan(study, make_trials(study), _load_suites(study))


def _load_suites(study: StudyConfig) -> dict[str, SuitePlan]:
    suites: dict[str, SuitePlan] = {}
    for section in study.evaluate:
        suite = load_suite(section.suite, section.overrides)
        if suite.name in suites:
            fix = "list all its sets in one section"
            raise ConfigError("a suite is listed twice", value=suite.name, fix=fix)
        missing = missing_sets(suite, Path(section.data), section.sets)
        if missing:
            problem = f"{len(missing)} sets of suite {suite.name!r} have no data"
            raise DataError(problem, path=section.data, value=list(missing), fix=suite.how_to_get)
        suites[suite.name] = SuitePlan(section, suite)
    return suites


def check_plan(plan: Plan) -> None:
    """Build every run without its weights, and check its folder.

    Raises
    ------
    ConfigError
        Naming all runs that cannot start, and why.
    """
    models: dict[str, Pretrained] = {}
    configs: dict[str, PretrainedConfig | None] = {}
    problems: list[str] = []
    failed: set[str] = set()
    for name, members in by_run(plan.trials).items():
        if failed & set(parents(plan.runs[name])):
            failed.add(name)
            continue
        try:
            origins: list[Origin] = []
            if plan.runs[name].is_trained:
                # Trials of a run differ only in the seed, so checking the first is enough.
                base = models.get(plan.runs[name].after or "")
                # Finished runs may have had other ranks.
                todo = not all(trial.is_whole for trial in members)
                ranks = plan.study.launch.ranks if todo else None
                models[name], origins = _rehearse(members[0], base, ranks)
            for trial in members:
                _check_folder(plan, trial, origins)
            # A merge has the tasks of its parents.
            if name in models:
                configs[name] = config = models[name].config
                _check_tasks(plan, members[0], config)
            elif plan.runs[name].merge is not None:
                configs[name] = _check_merge(plan, name, configs)
            else:
                _check_tasks(plan, members[0], read_config(members[0].folder))
        except SciMultError as error:
            failed.add(name)
            problems.append(f"{name}: {on_one_line(error)}")
    refuse(problems, len(plan.runs))


def _rehearse(
    trial: Trial, base: Pretrained | None, ranks: int | None
) -> tuple[Pretrained, list[Origin]]:
    """Return the model that a trial will save, with shapes instead of weights.

    Also return what each stage starts from.
    """
    device = usable_device(None)
    models: dict[str | None, Pretrained | None] = {None: base}
    origins = []
    for stage in trial.stages:
        run, model = rehearse(stage.config, models[stage.after], device, ranks)
        models[stage.name] = model
        origins.append(origin_of(run, model))
    return model, origins


def _check_merge(
    plan: Plan, name: str, configs: Mapping[str, PretrainedConfig | None]
) -> PretrainedConfig | None:
    """Refuse a merge of models that differ in size; return its config, None if that is not known.

    ``configs`` are those of trained runs and merges.
    """
    merge = plan.runs[name].merge
    assert merge is not None
    parts: dict[str, PretrainedConfig] = {}
    for parent in merge.parents:
        model = plan.runs[parent].model
        # Not `read_config`: merging reads the settings of sentence-transformers, too.
        config = configs[parent] if model is None else chosen_config(find_model_folder(model))[0]
        if config is None:
            return None
        parts[parent] = config
    if merge.models and not merge.share_experts:
        return check_alike(parts)
    if merge.experts and not any(config.encoder.is_routed for config in parts.values()):
        check_alike(parts, check_tasks=False)
    return None


def _check_tasks(plan: Plan, trial: Trial, config: PretrainedConfig) -> None:
    """Refuse a model that lacks a task of a set that it will be scored on."""
    known = {task.name for task in config.tasks}
    for name in plan.suites_of(trial):
        suite, wanted = plan.suites[name].suite, plan.suites[name].section.sets
        for benchmark_name, benchmark in suite.select(wanted).items():
            if not known & {benchmark.task, benchmark.fallback_task}:
                raise ConfigError(
                    f"set {benchmark_name!r} of suite {name!r} needs a task that the model lacks",
                    value=benchmark.task,
                    fix="add it to the configuration's tasks, or leave the set out",
                )


def _check_folder(plan: Plan, trial: Trial, origins: Sequence[Origin]) -> None:
    """Refuse a folder in which another run was trained, or this one from another base.

    ``origins`` are what its stages start from.
    """
    if plan.run_of(trial).model is not None and not trial.folder.exists():
        raise ConfigError("model does not exist", path=trial.folder, fix="check the path")
    started = any((Path(stage.config.output) / CONFIG_NAME).exists() for stage in trial.stages)
    inputs = plan.inputs(trial) if started else {}
    if inputs and read_mark(plan.out, f"{trial.key}.train") != inputs:
        raise ConfigError(
            f"was not trained from the current model of {', '.join(inputs)}",
            path=trial.folder,
            fix="remove this folder to train it again, or restore the old model",
        )
    for stage, origin in zip(trial.stages, origins, strict=True):
        check_folder(stage, trial.stages, origin)
