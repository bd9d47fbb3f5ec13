"""Trials: each run of a study with each of its seeds, and their files.

A job over trials is done if its files are complete and its mark lists the current weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.checkpoints.weights import weights_files
from scimult.config import load_config, string_override
from scimult.errors import ConfigError, SciMultError
from scimult.files import read_json, sha256, write_json
from scimult.studies.config import RunConfig, StudyConfig
from scimult.studies.lineage import ordered, seeds_of
from scimult.training import record
from scimult.training.config import PretrainConfig
from scimult.training.folder import MODEL_NAME
from scimult.training.stages import Stage, has_stages, load_stages, stages_up_to

AFTER = 1000
"""Added to a run's seed for each run that it builds on, so that it draws other batches."""

# Files of a configuration, a tokenizer or modules, whatever their library.
_SETTINGS = (".json", ".txt", ".model")


@dataclass(frozen=True)
class Trial:
    """A run with one of its seeds; None for a model without a seed.

    ``key`` is its name in folders and tables, ``folder`` its output or the existing model,
    ``stages`` are to train, in order, and ``overrides`` the study's and its own.
    """

    run: str
    seed: int | None
    key: str
    folder: Path
    stages: list[Stage]
    overrides: list[str]

    @property
    def model(self) -> Path:
        """The folder to evaluate: that of the last stage."""
        return Path(self.stages[-1].config.output) if self.stages else self.folder

    @property
    def files(self) -> Path:
        """The folder with the model's files, in a run folder or a saved model."""
        in_run = self.model / MODEL_NAME
        return in_run if self.stages or in_run.is_dir() else self.model

    @property
    def is_whole(self) -> bool:
        """Whether every stage has finished and the model exists."""
        states = [Path(stage.config.output) / record.FILE for stage in self.stages]
        ended = all(path.is_file() and read_json(path)["state"] == "finished" for path in states)
        return ended and bool(weights_files(self.files))


def make_trials(study: StudyConfig) -> dict[str, Trial]:
    """Return all trials by key, each after those that it is made from.

    Raises
    ------
    ConfigError
        Naming every run whose configuration is invalid, and runs that are the same.
    """
    runs = study.all_runs()
    trials: dict[str, Trial] = {}
    problems: list[str] = []
    for name in ordered(runs):
        seeds: list[int | None] = [*seeds_of(study, name, runs)]
        for seed in seeds or [None]:
            try:
                trial = _trial(study, name, runs[name], seed)
            except ConfigError as error:
                problems.append(f"{name}: {on_one_line(error)}")
                break
            if trial.key in trials:
                raise ConfigError("two runs have the same name", value=trial.key, fix="rename one")
            trials[trial.key] = trial
    refuse(problems, len(runs))
    _check_equal(runs, trials)
    return trials


def refuse(problems: Sequence[str], runs: int) -> None:
    """Raise one error for all runs that cannot start, if any."""
    if problems:
        message = "\n  ".join(["not every run can start:", *problems])
        message += f"\n{len(problems)} of {runs} runs cannot start"
        raise ConfigError(message, fix="correct these; nothing was started")


def on_one_line(error: SciMultError) -> str:
    """Return an error in a form for lists."""
    return str(error).replace(". Fix: ", "; ")


def key_of(name: str, seed: int | None) -> str:
    """Return the name of a run with a seed."""
    return name if seed is None else f"{name}-seed{seed}"


def by_run(trials: Mapping[str, Trial]) -> dict[str, list[Trial]]:
    """Return the trials of each run."""
    runs: dict[str, list[Trial]] = {}
    for trial in trials.values():
        runs.setdefault(trial.run, []).append(trial)
    return runs


def _trial(study: StudyConfig, name: str, run: RunConfig, seed: int | None) -> Trial:
    key = key_of(name, seed)
    if run.model is not None:
        return Trial(name, None, key, Path(run.model), [], [])
    folder = Path(study.output) / "runs" / key
    if run.merge is not None:
        return Trial(name, seed, key, folder, [], [])
    overrides = [*study.overrides, *run.overrides, string_override("output", str(folder))]
    assert seed is not None, "trained runs have seeds"
    overrides.append(f"seed={seed + AFTER * _depth(study, name)}")
    if run.after is not None:
        overrides += _base_overrides(study, run.after, seed)
    path = config_of(study, run)
    if not has_stages(path):
        if run.stage is not None:
            raise ConfigError("this config has no stages", path=path, fix="remove stage")
        stages = [Stage(key, load_config(PretrainConfig, path, overrides))]
    else:
        stages = load_stages(path, overrides)
        stages = stages_up_to(stages, run.stage) if run.stage else stages
    return Trial(name, seed, key, folder, stages, overrides)


def config_of(study: StudyConfig, run: RunConfig) -> str:
    """Return the configuration file of a trained run."""
    path = run.config or study.config
    assert path is not None, "checked with the study"
    return path


def _depth(study: StudyConfig, name: str) -> int:
    """Return the number of trained runs that a run builds on."""
    runs = study.all_runs()
    depth, before = 0, runs[name].after
    while before is not None and runs[before].is_trained:
        depth, before = depth + 1, runs[before].after
    return depth


def _base_overrides(study: StudyConfig, name: str, seed: int | None) -> list[str]:
    """Return the overrides that let a run start from another run's model."""
    runs = study.all_runs()
    base_seed = seed if seeds_of(study, name, runs) else None
    base = _trial(study, name, runs[name], base_seed).model
    origin = string_override("model.base", str(base))
    return [origin, "model.tokenizer=null", "model.architecture=null"]


def _check_equal(runs: Mapping[str, RunConfig], trials: Mapping[str, Trial]) -> None:
    """Refuse two runs that differ only in name and seeds."""
    seen: dict[str, str] = {}
    for name, (trial, *_) in by_run(trials).items():
        run = runs[name]
        if run.is_trained:
            base = run.after if run.after is not None and runs[run.after].is_trained else None
            content = "\n".join(_settings(stage, trial, base) for stage in trial.stages)
        else:
            path = None if run.model is None else str(Path(run.model).resolve())
            content = f"{path} {run.merge and run.merge.normal_form}"
        content += run.model_dump_json(include={"options"})
        if content in seen:
            fix = "remove one; list several seeds under seeds"
            raise ConfigError("two runs are the same", value=[seen[content], name], fix=fix)
        seen[content] = name


def _settings(stage: Stage, trial: Trial, base: str | None) -> str:
    """Return how a stage is trained, apart from its run's name and seed; ``base`` is a run's."""
    tree = stage.config.model_dump(mode="json", exclude={"output"})
    assert trial.seed is not None
    tree["seed"] -= trial.seed  # those of stages count from it
    # The paths of trained bases hold names and seeds.
    tree["model"]["base"] = stage.after or base or tree["model"]["base"]
    return json.dumps(tree)


Inputs = dict[str, str]
"""Input models to the SHA-256 of their weights, empty if missing."""


def weights_of(trials: Sequence[Trial]) -> Inputs:
    """Return the weights' digests of trials."""
    return {trial.key: _digest(weights_files(trial.files)) for trial in trials}


def settings_of(trial: Trial) -> str:
    """Return the digest of all that gives a model's weights their meaning.

    That is its configuration, tokenizer and modules.
    """
    own = [path for path in trial.files.glob("*") if path.suffix in _SETTINGS]
    return _digest(sorted([*own, *trial.files.glob("*/config.json")]))


def _digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of those of several; empty without files."""
    digests = [sha256(path) if path.is_file() else "" for path in files]
    if len(digests) < 2:
        return "".join(digests)
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def read_mark(out: Path, job: str) -> Inputs | None:
    """Return the inputs that a job recorded before it began; None if it never did."""
    path = _path(out, job)
    return dict(read_json(path)) if path.is_file() else None


def write_mark(out: Path, job: str, inputs: Inputs) -> None:
    """Record a job's inputs."""
    path = _path(out, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, inputs)


def _path(out: Path, job: str) -> Path:
    return out / "made" / f"{job}.json"
