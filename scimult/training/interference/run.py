"""Measure the interference of a run's tasks in a model and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scimult import __version__
from scimult.checkpoints import load_pretrained
from scimult.config import apply_overrides, read_yaml, validate
from scimult.errors import ConfigError
from scimult.files import FolderKind, check_replaceable, only_writer
from scimult.hardware import naming_full_memory, usable_device
from scimult.locks import is_left
from scimult.models import Encoder
from scimult.progress import note
from scimult.table import Table
from scimult.training.build import build_model
from scimult.training.config import PretrainConfig
from scimult.training.folder import CONFIG_NAME, MODEL_NAME
from scimult.training.interference.affinity import (
    affinity_runs,
    check_start,
    only_tasks,
    train_affinity,
)
from scimult.training.interference.cosines import compare
from scimult.training.interference.drift import check_base, measure_drift
from scimult.training.interference.gradients import (
    location_of,
    measure,
    training_objective,
    training_rounds,
)
from scimult.training.interference.layout import SuggestedLayout, suggest_layout
from scimult.training.interference.report import (
    JSON_FILE,
    PAGE_FILE,
    PICTURE_FILE,
    affinity_table,
    drift_table,
    interference_table,
    write_report,
)
from scimult.training.plan import plan_run
from scimult.training.stages import STAGES

_RUNS = "affinity"
_FILES = {JSON_FILE, PAGE_FILE, PICTURE_FILE, _RUNS, ".lock"}
_REPORT = FolderKind(
    "a report of scimult interference",
    lambda folder: {path.name for path in folder.iterdir() if not is_left(path)} <= _FILES,
)


@dataclass(frozen=True)
class InterferenceReport:
    """The part of a report that a terminal shows."""

    tables: list[Table]
    layout: SuggestedLayout


@naming_full_memory("lower batch.pairs_per_step, or use another device")
def run_interference(
    model: Path,
    out: Path,
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    rounds: int = 8,
    base: Path | None = None,
    affinity_steps: int = 0,
    device: str | torch.device | None = None,
) -> InterferenceReport:
    """Measure a model, in float32 and without dropout, on a run's mixture; write the report.

    ``config`` is the run's, by default that of the run that ``model`` is, or is in. ``out`` may
    hold an earlier report; runs of ``affinity_steps`` are in its sub-folder ``affinity`` and are
    continued if they exist. For the others see `gradients.training_rounds`,
    `drift.measure_drift` and `affinity.train_affinity`.

    Raises
    ------
    SciMultError
        If configuration, data or models do not fit, there are fewer than two tasks, or memory is
        full.
    """
    check_replaceable(out, _REPORT)
    settings = _settings(model, config, overrides)
    plan = plan_run(settings)
    present = {source.task for source in plan.sources}
    heads = sorted(present.intersection(settings.loss.heads))
    tasks = [task.name for task in settings.tasks if task.name in present.difference(heads)]
    if len(tasks) < 2:
        raise ConfigError(
            "interference needs at least two tasks trained on pairs",
            value=tasks,
            fix="name a configuration whose data.sources have them",
        )
    if heads:
        note(f"leaving out {', '.join(heads)}: the model does not contain their heads")
        settings = only_tasks(settings, plan, tasks)
        plan = plan_run(settings)
    runs = {}
    if affinity_steps:
        runs = affinity_runs(settings, plan, tasks, affinity_steps, out / _RUNS)
    torch_device = usable_device(device)
    pretrained = build_model(settings)
    if runs:
        check_start(out / _RUNS, pretrained)
    base_model = None
    if base is not None:
        base_model = load_pretrained(base, pooling=settings.model.pooling)
        check_base(base_model, pretrained, tasks, settings.data.max_length, base)
        base_model.model.to(torch_device)
    encoder = _to_measure(pretrained.model.to(torch_device))
    micro_batches = training_rounds(settings, plan, pretrained, tasks, rounds)
    objective = training_objective(settings, pretrained.routes, torch_device)
    products = list(measure(encoder, objective, tasks, pretrained.routes, micro_batches))
    locations = [
        location_of(name, encoder.config.num_blocks)
        for name, parameter in encoder.named_parameters()
        if parameter.requires_grad
    ]
    comparison = compare(tasks, locations, encoder.config.num_blocks, products)
    if all(cell.verdict == "routed" for cell in comparison.pairs):
        raise ConfigError(
            "no two tasks train a common parameter, so nothing can interfere",
            value=settings.model.variant,
            fix="measure a model with shared parameters, or set model.train=all",
        )
    layout = suggest_layout(comparison)
    drifts = []
    if base_model is not None:
        flat = [each for by_task in micro_batches for halves in by_task for each in halves]
        drifts = measure_drift(base_model, pretrained, tasks, flat)
    tables = [interference_table(comparison)]
    if drifts:
        tables.append(drift_table(drifts))
    facts: dict[str, Any] = {
        "scimult": __version__,
        "model": str(model),
        "base": None if base is None else str(base),
        "data": plan.data.fingerprint,
        "config": settings.model_dump(mode="json"),
        "affinity_steps": affinity_steps,
    }
    with only_writer(out):
        # The map is not lost if a training run fails.
        write_report(out, facts, comparison, layout, drifts, [], tables)
        if runs:
            affinity = train_affinity(settings, plan, runs, out / _RUNS, torch_device)
            tables.append(affinity_table(affinity, affinity_steps))
            write_report(out, facts, comparison, layout, drifts, affinity, tables)
    return InterferenceReport(tables, layout)


def _to_measure(encoder: Encoder) -> Encoder:
    """Return the encoder, ready for the gradients of what tasks can share."""
    if encoder.embeddings.codes is not None:
        # One weight, but each row is of one route.
        encoder.embeddings.codes.requires_grad_(False)
    # Dropout is 0: training mode differs only by recomputation, which limits memory.
    encoder.checkpoints_activations = True
    return encoder.train()


def _settings(model: Path, config: Path | None, overrides: Sequence[str]) -> PretrainConfig:
    """Return the configuration of a run that would start from ``model``, without dropout."""
    run = model.parent if model.name == MODEL_NAME else model
    path = config or run / CONFIG_NAME
    if config is None and not path.is_file():
        # A mistyped runs/mine could be a name on the hub.
        problem = "model is not a run" if model.exists() else "there is no such folder"
        raise ConfigError(
            f"{problem}, so its mixture is unknown",
            path=model,
            fix="name a run's configuration: --config FILE",
        )
    tree = apply_overrides(read_yaml(path), overrides)
    if STAGES in tree:
        raise ConfigError(
            "this configuration has several runs, one per stage",
            path=path,
            value=list(tree[STAGES] or ()),
            fix="name one that has started: --config OUTPUT/STAGE/config.yaml",
        )
    origin = {"base": str(model), "tokenizer": None, "architecture": None}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    tree["model"] = {**tree.get("model", {}), **origin, **no_dropout}
    tree.setdefault("output", "unused")
    return validate(PretrainConfig, tree, path)
