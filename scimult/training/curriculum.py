"""Run the stages of a curriculum in order, skipping finished ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scimult import distributed
from scimult.checkpoints import Pretrained, read_config
from scimult.checkpoints.weights import WEIGHTS_FILE
from scimult.errors import ConfigError, SciMultError
from scimult.files import read_json, sha256, write_json
from scimult.models.compiled import check_compiles
from scimult.progress import note
from scimult.training import build
from scimult.training.callbacks import open_tracker
from scimult.training.config import PretrainConfig
from scimult.training.deepspeed_config import deepspeed_settings, resolve_precision
from scimult.training.embedding_teacher import needs_projection
from scimult.training.engine import process_group
from scimult.training.folder import (
    CHECKPOINTS,
    CONFIG_NAME,
    MODEL_NAME,
    check_nothing_foreign,
    check_same_config,
    has_checkpoint,
)
from scimult.training.negatives import check_negatives
from scimult.training.origin import Origin, differing, origin_of
from scimult.training.plan import RunPlan, plan_run
from scimult.training.record import read_record
from scimult.training.run import pretrain
from scimult.training.stages import Stage
from scimult.training.state import newest_info
from scimult.training.stopping import StoppedError, StopRequest

# In a stage's folder: the checksum of the weights that it started from.
_ORIGIN_FILE = "warm_start.json"


def run_stages(stages: Sequence[Stage], *, resume: bool = True) -> Path:
    """Pre-train all stages in one job; return the saved model of the last; every rank calls this.

    ``resume`` skips finished stages and continues an interrupted one. Otherwise stage folders that
    hold a run are refused.

    Raises
    ------
    SciMultError
        Before the first stage starts, if the configuration, data, base or folder of any stage
        does not allow it; later, as `pretrain`.
    StoppedError
        If SIGTERM, SIGINT or SIGHUP ended a stage early; the same call continues it.
    """
    timeout = stages[0].config.engine.timeout_minutes * 60
    with process_group(timeout) as device, distributed.naming_lost_ranks():
        origins = _check(stages, device)
        finished = {
            stage.name
            for stage in stages
            if check_folder(stage, stages, origins[stage.name], resume)
        }
        # No rank may write before all have checked.
        distributed.barrier()
        stop_request = StopRequest()
        for number, stage in enumerate(stages, start=1):
            title = f"stage {number}/{len(stages)}, {stage.name}"
            if stage.name in finished:
                note(f"{title}: already finished")
                continue
            note(f"{title}: from {stage.config.model.base or 'scratch'}")
            _save_origin(stage)
            pretrain(stage.config, resume=resume, stop_request=stop_request)
            # A request during a stage's last step did not end that stage.
            signals = distributed.all_gather_objects(stop_request.signal)
            if any(signals) and stage is not stages[-1]:
                raise StoppedError(f"stage {stage.name!r}", max(signals))
        return Path(stages[-1].config.output) / MODEL_NAME


def _check(stages: Sequence[Stage], device: torch.device) -> dict[str, Origin]:
    """Rehearse all stages; return what each starts from."""
    models: dict[str, Pretrained] = {}
    origins: dict[str, Origin] = {}
    for stage in stages:
        base = None if stage.after is None else models[stage.after]
        try:
            plan, models[stage.name] = rehearse(stage.config, base, device)
        except SciMultError as error:
            raise ConfigError(f"stage {stage.name!r}: {error}") from error
        origins[stage.name] = origin_of(plan, models[stage.name])
    return origins


def rehearse(
    config: PretrainConfig,
    base: Pretrained | None,
    device: torch.device,
    ranks: int | None = None,
) -> tuple[RunPlan, Pretrained]:
    """Return a run's plan, and its model with shapes instead of weights.

    This finds contradictions before it starts. ``base`` is the model that an earlier run, perhaps
    not started yet, will save as ``model.base``; ``ranks`` by default those of now.

    Raises
    ------
    SciMultError
        If configuration, data or base do not allow the run.
    """
    plan = plan_run(config)
    if base is None:
        model = build.build_model(config)
        model.model.to("meta")
    else:
        model = build.rehearse_model(config, base)
    check_negatives(config, plan, model.routes)
    build.check_tasks_train(model, plan.loss_weights)
    deepspeed_settings(config, resolve_precision(config.engine.precision, device), ranks)
    if config.engine.compile:
        check_compiles(model.config.encoder)
    if plan.embedding_teacher is not None:
        needs_projection(config, plan.embedding_teacher, model.config.encoder.width)
    if config.log.tracker is not None:
        open_tracker(config.log.tracker)
    return plan, model


def check_folder(
    stage: Stage, stages: Sequence[Stage], origin: Origin, resume: bool = True
) -> bool:
    """Return whether a stage is finished; refuse a run of other settings, data or base.

    ``origin`` is what the stage starts from now. Without ``resume`` any run is refused.

    Raises
    ------
    SciMultError
        If the folder holds another run, or files that the run would overwrite.
    """
    folder, saved = _folder(stage), _folder(stage) / CONFIG_NAME
    check_nothing_foreign(folder)
    if not saved.exists():
        return False
    if not resume:
        raise ConfigError(
            "folder already holds a run", path=folder, fix="choose another output, or resume"
        )
    # A run killed just after it wrote its model may lack heads. Old versions recorded nothing.
    ended = read_record(folder).get("state", "finished") == "finished"
    finished = ended and _weights(stage).is_file()
    if finished or has_checkpoint(folder):
        before = check_same_config(saved, stage.config, _recorded(folder, finished))
        _check_origin(stage, stages)
    if finished:
        _check_finished(stage, before, origin)
    return finished


def _recorded(folder: Path, finished: bool) -> dict[str, Any]:
    """Return what a finished or interrupted run recorded of its `Origin`."""
    if not finished:
        return newest_info(folder / CHECKPOINTS)
    recorded: dict[str, Any] = read_config(folder).provenance.get("origin", {})
    return recorded


def _check_finished(stage: Stage, before: PretrainConfig, origin: Origin) -> None:
    """Refuse a finished stage whose model was decided by another origin, or other settings."""
    folder = _folder(stage)
    provenance = read_config(folder).provenance
    made_from = {"data": provenance.get("data"), **provenance.get("origin", {})}
    if "origin" not in provenance:  # of an earlier version
        made_from = {**origin, **made_from}
    if others := differing(made_from, origin):
        raise ConfigError(
            f"the finished run was trained on other {' and '.join(others)}",
            path=folder,
            fix="restore what it was trained on, or choose another output",
        )
    settings, now = _settings_of_model(before), _settings_of_model(stage.config)
    if now["engine.precision"] == "auto":
        now["engine.precision"] = settings["engine.precision"]
    changed = {name: now[name] for name in now if now[name] != settings[name]}
    if changed:
        raise ConfigError(
            f"the finished run was trained with a different {', '.join(changed)}",
            path=folder / CONFIG_NAME,
            value=changed,
            fix="set it as it was, or remove this folder to train the run again",
        )


def _settings_of_model(config: PretrainConfig) -> dict[str, Any]:
    """Return the settings that decide a model and may still be changed in a run, or on resume."""
    by_dev = config.checkpoint.export == "best" or config.dev.patience is not None
    return {
        "engine.precision": config.engine.precision,
        "checkpoint.export": config.checkpoint.export,
        "dev": config.dev.model_dump() if by_dev else None,
    }


def _check_origin(stage: Stage, stages: Sequence[Stage]) -> None:
    before = next((other for other in stages if other.name == stage.after), None)
    if before is None:
        return
    origin, weights = _folder(stage) / _ORIGIN_FILE, _weights(before)
    saved = read_json(origin)["weights"] if origin.is_file() else None
    if saved is None or not weights.is_file() or sha256(weights) != saved:
        raise ConfigError(
            f"stage {stage.name!r} did not start from the present model of stage {before.name!r}",
            path=_folder(stage),
            fix=f"remove this folder to train it again, or restore the old {before.name!r}",
        )


def _save_origin(stage: Stage) -> None:
    if stage.after is not None and distributed.is_main():
        base = Path(str(stage.config.model.base)) / MODEL_NAME / WEIGHTS_FILE
        write_json(_folder(stage) / _ORIGIN_FILE, {"stage": stage.after, "weights": sha256(base)})


def _folder(stage: Stage) -> Path:
    return Path(stage.config.output)


def _weights(stage: Stage) -> Path:
    return _folder(stage) / MODEL_NAME / WEIGHTS_FILE
