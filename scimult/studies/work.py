"""The jobs of a study: train or merge each trial, then evaluate it on each suite."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import scimult
from scimult.distributed import free_port
from scimult.errors import ConfigError
from scimult.evaluation.results import folder_of, load_result
from scimult.studies.config import LaunchConfig, MergeConfig
from scimult.studies.jobs import Job, Slot
from scimult.studies.plan import Plan
from scimult.studies.trials import Inputs, Trial, config_of, read_mark, weights_of, write_mark

LAUNCHER = Path(scimult.__file__).resolve().parent.parent / "launch" / "pretrain.py"
_SCIMULT = [sys.executable, "-m", "scimult.cli.main"]


def make_slots(launch: LaunchConfig) -> list[Slot]:
    """Return where jobs run: groups of GPUs, or shares of the CPUs."""
    if launch.devices is not None:
        groups = range(0, len(launch.devices), launch.ranks)
        return [Slot(tuple(launch.devices[at : at + launch.ranks])) for at in groups]
    cores = len(os.sched_getaffinity(0))
    threads = None if launch.parallel == 1 else max(1, cores // (launch.parallel * launch.ranks))
    return [Slot(threads=threads)] * launch.parallel


def make_jobs(plan: Plan) -> list[Job]:
    """Return all jobs, each after those that it needs.

    Raises
    ------
    ConfigError
        If something is to be trained and the launcher's script is not there.
    """
    if any(run.is_trained for run in plan.runs.values()) and not LAUNCHER.is_file():
        fix = "install a checkout of the project with pip install -e"
        raise ConfigError("training is started by a script of the project", path=LAUNCHER, fix=fix)
    jobs: list[Job] = []
    for trial in plan.trials.values():
        if making := making_of(plan, trial):
            jobs.append(making)
        jobs += [Evaluating(plan, trial, suite) for suite in plan.suites_of(trial)]
    return jobs


def making_of(plan: Plan, trial: Trial) -> Training | Merging | None:
    """Return the job that makes a trial's model; None if it is there."""
    run = plan.run_of(trial)
    if run.merge is not None:
        return Merging(plan, trial, run.merge)
    return Training(plan, trial) if run.is_trained else None


@dataclass(frozen=True)
class _Making:
    """Makes the model of a trial, of the base or the models that its run names."""

    plan: Plan
    trial: Trial
    verb: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.trial.key}.{self.verb}"

    @property
    def needs(self) -> list[str]:
        """What makes the models that it starts from."""
        made = [making_of(self.plan, parent) for parent in self.plan.parents(self.trial)]
        return [making.name for making in made if making is not None]

    def is_done(self) -> bool:
        """Return whether the model is there, of the models that are there."""
        inputs = self.plan.inputs(self.trial)
        return self.trial.is_whole and (not inputs or read_mark(self.plan.out, self.name) == inputs)

    def begin(self) -> None:
        """Note the models that it starts from."""
        write_mark(self.plan.out, self.name, self.plan.inputs(self.trial))


@dataclass(frozen=True)
class Training(_Making):
    """Trains a trial as users do: in one process, or under ``deepspeed``."""

    verb = "train"

    def command(self, slot: Slot) -> list[str]:
        """Return the launcher's command."""
        run, launch = self.plan.run_of(self.trial), self.plan.study.launch
        start = [sys.executable]
        if launch.ranks > 1:
            where = ["--num_gpus", str(launch.ranks)]
            if slot.devices:
                where = ["--include", f"localhost:{','.join(map(str, slot.devices))}"]
            start += ["-m", "deepspeed.launcher.runner", *where]
            # DeepSpeed always takes the same port, which another run may hold.
            start += ["--master_port", str(free_port())]
        stage = ["--stage", run.stage] if run.stage else []
        config = ["--config", config_of(self.plan.study, run), *stage]
        return [*start, str(LAUNCHER), *config, *self.trial.overrides]


@dataclass(frozen=True)
class Merging(_Making):
    """Merges other trials' models."""

    merge: MergeConfig
    verb = "merge"

    def command(self, slot: Slot) -> list[str]:
        """Return the command of ``scimult merge``."""
        merge = self.merge

        def model(name: str) -> str:
            return str(self.plan.trial_of(name, self.trial.seed).model)

        command = [*_SCIMULT, "merge", *map(model, merge.models), "--out", str(self.trial.folder)]
        for share in merge.shares:
            command += ["--share", str(share)]
        for task, name in merge.experts.items():
            command += ["--expert", f"{task}={model(name)}"]
        if merge.method != "average":
            command += ["--method", merge.method]
        if merge.base is not None:
            command += ["--base", model(merge.base)]
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
        return f"{self.trial.key}.evaluate.{self.suite}"

    @property
    def needs(self) -> list[str]:
        """What makes the model."""
        making = making_of(self.plan, self.trial)
        return [] if making is None else [making.name]

    def is_done(self) -> bool:
        """Return whether the model that is there was scored on every set."""
        whole = all(scored_sets(self.plan, self.trial, self.suite).values())
        return whole and read_mark(self.plan.out, self.name) == self._inputs()

    def begin(self) -> None:
        """Note the model."""
        write_mark(self.plan.out, self.name, self._inputs())

    def command(self, slot: Slot) -> list[str]:
        """Return the command of ``scimult evaluate``."""
        section = self.plan.suites[self.suite].section
        command = [*_SCIMULT, "evaluate", "--suite", section.suite, "--data", section.data]
        command += ["--out", str(self.plan.results(self.suite))]
        command += ["--model", self.plan.system(self.trial)]
        for name in section.sets:
            command += ["--sets", name]
        before = read_mark(self.plan.out, self.name)
        other_model = before is not None and before != self._inputs()
        return [*command, "--replace" if other_model else "--resume", *section.overrides]

    def _inputs(self) -> Inputs:
        """Return what a score is of: weights, and how they are used."""
        options = ",".join(f"{k}={v}" for k, v in sorted(self.plan.options(self.trial).items()))
        return {**weights_of([self.trial]), "options": options}


def scored_sets(plan: Plan, trial: Trial, suite: str) -> dict[str, bool]:
    """Return by set whether a trial has a score on it, as the suite has it now."""
    asked = plan.suites[suite]
    wanted = asked.suite.select(asked.section.sets)
    path = folder_of(plan.results(suite), trial.key) / "result.json"
    if not path.is_file():
        return dict.fromkeys(wanted, False)
    result = load_result(path)
    return {
        name: name not in result.failed
        and name in result.sets
        and result.suite["benchmarks"][name] == benchmark.model_dump(mode="json")
        for name, benchmark in wanted.items()
    }
