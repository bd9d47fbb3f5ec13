"""The jobs of a study: train or merge each trial, then evaluate it on each suite."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from scimult.distributed import free_port
from scimult.evaluation.growing import scored_alike
from scimult.evaluation.harness import has_files
from scimult.evaluation.protocols import rules_of
from scimult.evaluation.results import (
    Result,
    averages,
    folder_of,
    load_result,
    load_results,
    save_result,
)
from scimult.progress import note
from scimult.studies.config import LaunchConfig, MergeConfig
from scimult.studies.jobs import Job, Slot
from scimult.studies.plan import Plan
from scimult.studies.trials import (
    Inputs,
    Trial,
    config_of,
    read_mark,
    settings_of,
    weights_of,
    write_mark,
)

_SCIMULT = [sys.executable, "-m", "scimult.cli.main"]


def make_slots(launch: LaunchConfig) -> list[Slot]:
    """Return the slots of jobs: groups of GPUs, or else shares of the CPUs.

    Jobs that share a machine or a GPU also share the cores evenly.
    """
    devices, ranks = launch.devices or [], launch.ranks
    groups = [tuple(devices[i : i + ranks]) for i in range(0, len(devices), ranks)] or [()]
    jobs = len(groups) * launch.parallel
    cores = len(os.sched_getaffinity(0)) // (jobs * ranks)
    threads = None if jobs == 1 else max(1, cores)
    return [Slot(group, threads) for _ in range(launch.parallel) for group in groups]


def make_jobs(plan: Plan) -> list[Job]:
    """Return all jobs, each after those that it needs."""
    jobs: list[Job] = []
    for trial in plan.trials.values():
        if making := making_of(plan, trial):
            jobs.append(making)
        jobs += [Evaluating(plan, trial, suite) for suite in plan.suites_of(trial)]
    return jobs


def making_of(plan: Plan, trial: Trial) -> Training | Merging | None:
    """Return the job that makes a trial's model; None for an existing model."""
    run = plan.run_of(trial)
    if run.merge is not None:
        return Merging(plan, trial, run.merge)
    return Training(plan, trial) if run.is_trained else None


@dataclass(frozen=True)
class _Making:
    """Makes a trial's model from the models that its run names, if any."""

    plan: Plan
    trial: Trial
    verb: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.trial.key}.{self.verb}"

    @property
    def needs(self) -> list[str]:
        """Jobs that make its parents' models."""
        jobs = [making_of(self.plan, parent) for parent in self.plan.parents(self.trial)]
        return [job.name for job in jobs if job is not None]

    def inputs(self) -> Inputs:
        """Return what the model is made from."""
        return self.plan.inputs(self.trial)

    def is_done(self) -> bool:
        """Return whether the model exists and was made from what it would be made from now."""
        inputs = self.inputs()
        return self.trial.is_whole and (not inputs or read_mark(self.plan.out, self.name) == inputs)

    def begin(self) -> None:
        """Record what the model is made from."""
        write_mark(self.plan.out, self.name, self.inputs())


@dataclass(frozen=True)
class Training(_Making):
    """Trains a trial in one process, or under ``deepspeed``."""

    verb = "train"

    def command(self, slot: Slot) -> list[str]:
        """Return the command of ``launch/pretrain.py``, which an installed package lacks."""
        run, launch = self.plan.run_of(self.trial), self.plan.study.launch
        start = [sys.executable, "-m"]
        if launch.ranks > 1:
            gpus = ["--num_gpus", str(launch.ranks)]
            if slot.devices:
                gpus = ["--include", f"localhost:{','.join(map(str, slot.devices))}"]
            # DeepSpeed's default port may be taken by another run.
            port = ["--master_port", str(free_port())]
            start += ["deepspeed.launcher.runner", *gpus, *port, "--module"]
        stage = ["--stage", run.stage] if run.stage else []
        config = ["--config", config_of(self.plan.study, run), *stage]
        return [*start, "scimult.cli.pretrain", *config, *self.trial.overrides]


@dataclass(frozen=True)
class Merging(_Making):
    """Merges other trials' models."""

    merge: MergeConfig
    verb = "merge"

    def inputs(self) -> Inputs:
        """Return the models' weights and settings, and how they are merged."""
        settings = {
            f"settings of {parent.key}": settings_of(parent)
            for parent in self.plan.parents(self.trial)
            if not self.plan.run_of(parent).is_trained
        }
        merge = self.merge.model_dump_json(exclude_defaults=True)
        return {**super().inputs(), **settings, "merge": merge}

    def begin(self) -> None:
        """Remove a model merged otherwise, then record what this one is made from."""
        _remove(self.trial.folder)
        super().begin()

    def command(self, slot: Slot) -> list[str]:
        """Return the ``scimult merge`` command."""
        merge = self.merge

        def models(name: str) -> list[str]:
            return [str(trial.model) for trial in self.plan.made_from(self.trial, name)]

        merged = [models(name) for name in merge.models]
        command = [*_SCIMULT, "merge", *chain(*merged), "--out", str(self.trial.folder)]
        shares = merge.shares
        if merge.all_seeds:
            each = shares or [1 / len(merged)] * len(merged)
            shares = [s / len(own) for s, own in zip(each, merged, strict=True) for _ in own]
        for share in shares:
            command += ["--share", str(share)]
        for task, name in merge.experts.items():
            command += ["--expert", f"{task}={models(name)[0]}"]
        if merge.method != "average":
            command += ["--method", merge.method]
        if merge.base is not None:
            command += ["--base", *models(merge.base)]
        if merge.by_depth is not None:
            command += ["--by-depth", ":".join(map(str, merge.by_depth))]
        if merge.variant is not None:
            command += ["--variant", merge.variant]
        return [*command, *(["--share-experts"] if merge.share_experts else [])]


@dataclass(frozen=True)
class Evaluating:
    """Scores a trial's model on a suite."""

    plan: Plan
    trial: Trial
    suite: str

    @property
    def name(self) -> str:
        """Its name."""
        return _evaluation(self.trial.key, self.suite)

    @property
    def needs(self) -> list[str]:
        """The job that makes the model, if any."""
        making = making_of(self.plan, self.trial)
        return [] if making is None else [making.name]

    def is_done(self) -> bool:
        """Return whether the current model was scored on every set."""
        return all(self.current_sets().values())

    def current_sets(self) -> dict[str, bool]:
        """Return, for each requested set, whether it has a score of the current model."""
        is_current = self.is_current()
        sets = scored_sets(self.plan, self.trial, self.suite)
        return {name: scored and is_current for name, scored in sets.items()}

    def is_current(self) -> bool:
        """Return whether scores, where there are any, are of the current model."""
        return read_mark(self.plan.out, self.name) == self.inputs()

    def begin(self) -> None:
        """Remove another model's scores, then record the model."""
        if read_mark(self.plan.out, self.name) not in (None, self.inputs()):
            _remove(folder_of(self.plan.results(self.suite), self.trial.key))
        write_mark(self.plan.out, self.name, self.inputs())

    def command(self, slot: Slot) -> list[str]:
        """Return the ``scimult evaluate`` command."""
        section = self.plan.suites[self.suite].section
        command = [*_SCIMULT, "evaluate", "--suite", section.suite, "--data", section.data]
        command += ["--out", str(self.plan.results(self.suite))]
        command += ["--model", self.plan.system(self.trial)]
        for name in section.sets:
            command += ["--sets", name]
        return [*command, "--resume", *section.overrides]

    def inputs(self) -> Inputs:
        """Return what determines the scores: the model and evaluation options."""
        options = ",".join(f"{k}={v}" for k, v in sorted(self.plan.options(self.trial).items()))
        inputs = {**weights_of([self.trial]), "options": options}
        # A trained model's settings are its run's: another run is refused.
        if not self.plan.run_of(self.trial).is_trained:
            inputs["settings"] = settings_of(self.trial)
        return inputs


def _evaluation(system: str, suite: str) -> str:
    """Return the name of the job that scores a system."""
    return f"{system}.evaluate.{suite}"


def drop_other_scores(plan: Plan) -> None:
    """Remove the scores of requested sets on other data, or under other settings, than now.

    ``scimult evaluate`` scores nothing beside such scores of others: they cannot be compared. Those
    that the study has not made stay.
    """
    for suite in plan.suites:
        out = plan.results(suite)
        for result in load_results(out):
            scored = _scored(plan, suite, result)
            sets = {name: entry for name, entry in result.sets.items() if scored.get(name, True)}
            is_ours = read_mark(plan.out, _evaluation(result.system, suite)) is not None
            if len(sets) == len(result.sets) or not is_ours:
                continue
            dropped = ", ".join(name for name in result.sets if name not in sets)
            note(f"{result.system}: dropping scores of other data or settings: {dropped}")
            if sets:
                update = {"sets": sets, "averages": averages(sets)}
                save_result(result.model_copy(update=update), out)
            else:
                _remove(folder_of(out, result.system))


def _remove(folder: Path) -> None:
    """Remove what a job is about to make anew: once its mark is written, it would count as new."""
    if folder.exists():
        shutil.rmtree(folder)


def scored_sets(plan: Plan, trial: Trial, suite: str) -> dict[str, bool]:
    """Return, for each requested set, whether a trial has a score under the current suite.

    Scores on other data than the present files do not count.
    """
    path = folder_of(plan.results(suite), trial.key) / "result.json"
    return _scored(plan, suite, load_result(path) if path.is_file() else None)


def _scored(plan: Plan, suite: str, result: Result | None) -> dict[str, bool]:
    suite_plan = plan.suites[suite]
    wanted = suite_plan.suite.select(suite_plan.section.sets)
    if result is None:
        return dict.fromkeys(wanted, False)
    root = Path(suite_plan.section.data)
    return {
        name: name not in result.failed
        and name in result.sets
        and scored_alike(result.suite["benchmarks"][name], benchmark.model_dump(mode="json"))
        and result.sets[name].rules == rules_of(benchmark)
        and has_files(benchmark, root, result.sets[name].files)
        for name, benchmark in wanted.items()
    }
