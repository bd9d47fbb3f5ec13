"""Which runs of a study are made from which others, in what order, and with which seeds."""

from __future__ import annotations

from collections.abc import Mapping

from scimult.errors import ConfigError
from scimult.studies.config import MergeConfig, RunConfig, StudyConfig


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

    A merged model has the seeds that all trained runs in it share, or none if all are in it.
    """
    run = runs[name]
    if run.model is not None or (run.merge is not None and run.merge.all_seeds):
        return []
    if run.is_trained:
        return study.seeds if run.seeds is None else run.seeds
    seeds = [own for parent in parents(run) if (own := seeds_of(study, parent, runs))]
    return [seed for seed in (seeds or [[]])[0] if all(seed in own for own in seeds)]


def check_lineage(study: StudyConfig, runs: Mapping[str, RunConfig]) -> None:
    """Refuse runs that cannot be made from those that they name.

    Raises
    ------
    ConfigError
        If a named run is missing, is made from the run itself, or lacks a model for a seed.
    """
    for name, run in runs.items():
        for parent in parents(run):
            if parent not in runs:
                fix = f"use one of {', '.join(key for key in runs if key != name)}"
                problem = f"run {name!r} needs a run that is missing"
                raise ConfigError(problem, value=parent, fix=fix)
    ordered(runs)
    for name, run in runs.items():
        if run.after is not None:
            _check_base(study, name, run.after, runs)
        if run.merge is not None:
            _check_merged_seeds(study, name, run.merge, runs)


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


def _check_merged_seeds(
    study: StudyConfig, name: str, merge: MergeConfig, runs: Mapping[str, RunConfig]
) -> None:
    """Refuse a merge of runs without a common seed, or with a base for each seed."""
    own = {parent: seeds_of(study, parent, runs) for parent in merge.parents}
    if merge.all_seeds:
        if merge.base is not None and own[merge.base]:
            fix = "use a run with model as the base, or remove all_seeds"
            problem = f"the base of merge {name!r} has a model per seed"
            raise ConfigError(problem, value=merge.base, fix=fix)
        if sum(max(1, len(seeds)) for seeds in own.values()) < 2:
            fix = "train it with more seeds, or name more models"
            raise ConfigError(f"merge {name!r} has only one model", value=own, fix=fix)
    elif any(own.values()) and not seeds_of(study, name, runs):
        fix = "train them with the same seeds, or set all_seeds: true"
        raise ConfigError(f"the runs that {name!r} merges share no seed", value=own, fix=fix)
