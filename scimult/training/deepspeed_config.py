"""Resolve a run's DeepSpeed configuration: fill in our settings, refuse contradictions."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

import torch

from scimult import distributed
from scimult.errors import ConfigError
from scimult.files import read_json
from scimult.hardware import multiplies_bfloat16
from scimult.progress import warn
from scimult.training import deepspeed_private
from scimult.training.config import PrecisionChoice, PretrainConfig

Precision = Literal["fp32", "bf16", "fp16"]
# Lower stages ignore these silently.
_OFFLOADS_FROM = {"offload_optimizer": 1, "offload_param": 3}
# Keys that decide how a run trains; DeepSpeed ignores a misspelt one.
_DECISIVE = (
    "zero_optimization bf16 fp16 data_types torch_autocast communication_data_type "
    "gradient_clipping gradient_accumulation_steps train_batch_size "
    "train_micro_batch_size_per_gpu optimizer scheduler"
).split()
# Values of ``zero_optimization`` that spoil a run in silence.
_SPOILING = {
    "compute_grad_norm": (False, "would hide non-finite gradients"),
    # Up to 0.19 DeepSpeed reorders weights, but not the map by which it gives them back.
    "round_robin_gradients": (True, "would save weights under the names of others"),
}
_DEEPSPEED_BUCKET = 500_000_000


def deepspeed_settings(
    config: PretrainConfig, precision: Precision, ranks: int | None = None
) -> dict[str, Any]:
    """Return the DeepSpeed configuration of a run, complete and without contradictions.

    Raises
    ------
    ConfigError
        If it contradicts the run.
    """
    settings = resolve_deepspeed(
        config.engine.deepspeed,
        pairs_per_step=config.batch.pairs_per_step,
        accumulation=config.batch.accumulation,
        world_size=ranks or distributed.world_size(),
        precision=precision,
        clip=config.optimizer.clip,
    )
    zero = settings.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    # Importing DeepSpeed takes seconds, which plain settings need not wait for.
    if zero.keys() - {"stage"}:
        deepspeed_private.check_zero(zero)
    if config.engine.compile and stage == 3:
        raise ConfigError(
            "engine.compile does not work under ZeRO stage 3, which gathers weights inside it",
            value={"zero_optimization.stage": stage},
            fix="use another stage, or leave engine.compile out",
        )
    return settings


def resolve_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Return the precision of a run; ``auto`` picks the one that is fast on the device.

    Raises
    ------
    ConfigError
        If a CPU is to train in fp16.
    """
    if choice == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 needs a GPU", fix="use engine.precision auto, bf16 or fp32")
    fast = multiplies_bfloat16(device)
    if choice == "bf16" and not fast:
        warn("this device emulates bf16 products, slower than fp32: use engine.precision auto")
    if choice != "auto":
        return choice
    return "bf16" if fast else "fp32"


def resolve_deepspeed(
    source: str | dict[str, Any],
    *,
    pairs_per_step: int | None,
    accumulation: int,
    world_size: int,
    precision: Precision,
    clip: float,
) -> dict[str, Any]:
    """Fill in a DeepSpeed configuration, a JSON file or its content, and refuse contradictions.

    ``pairs_per_step`` (None with a token budget), ``accumulation`` and ``world_size`` determine the
    permitted values of DeepSpeed's three batch sizes. DeepSpeed itself sees every step as one
    batch: `DeepSpeedEngine.one_reduction` adds up the passes of a step. A ``clip`` of 0 is none,
    where DeepSpeed clips at 1.0 if the key is absent.

    Raises
    ------
    ConfigError
        If a given value contradicts ours, the batch cannot be divided, or the file
        chooses its own optimizer or scheduler.
    """
    path = source if isinstance(source, str) else None
    given = read_json(source) if isinstance(source, str) else source
    if not isinstance(given, dict):
        raise ConfigError("a DeepSpeed configuration is a JSON object", path=path)
    for section in ("zero_optimization", "bf16", "fp16", "data_types", "torch_autocast"):
        if not isinstance(given.get(section, {}), dict):
            raise ConfigError(
                f"{section} in the DeepSpeed configuration is not a mapping",
                path=path,
                value=given[section],
                fix="write a mapping of options, or leave it out",
            )
    _refuse_misspelt(given, path)
    _refuse(given, path, precision)
    required: dict[str, Any] = {
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
    }
    if pairs_per_step is not None:
        if pairs_per_step % (accumulation * world_size):
            raise ConfigError(
                f"batch.pairs_per_step {pairs_per_step} cannot be split over {world_size} ranks "
                f"and {accumulation} accumulation steps",
                fix=f"use a multiple of {accumulation * world_size}",
            )
        required["train_batch_size"] = pairs_per_step
        required["train_micro_batch_size_per_gpu"] = pairs_per_step // accumulation // world_size
    extras = {
        "steps_per_print": 1_000_000_000,
        "zero_allow_untested_optimizer": True,
        # Where ZeRO offloads the optimizer, ours runs on the CPU, by the fused kernel.
        "zero_force_ds_cpu_optimizer": False,
        # On by default, it waits for the device in every forward pass.
        "timers": {"throughput": {"enabled": False}},
    }
    per_rank = 1 if pairs_per_step is None else pairs_per_step // world_size
    batch_sizes = {
        "train_batch_size": per_rank * world_size,
        "train_micro_batch_size_per_gpu": per_rank,
        "gradient_accumulation_steps": 1,
    }
    return extras | _fill(given, required, path, prefix="") | batch_sizes


def bound_buckets(settings: dict[str, Any], trained: int) -> dict[str, Any]:
    """Limit the reduction buffer to the gradients of ``trained`` weights.

    By default DeepSpeed allocates 500 million numbers in every step, whatever the model.
    """
    zero = settings.get("zero_optimization", {})
    if zero.get("stage", 0) == 0 or zero.get("reduce_bucket_size", "auto") != "auto":
        return settings
    size = min(_DEEPSPEED_BUCKET, trained)
    return settings | {"zero_optimization": {**zero, "reduce_bucket_size": size}}


def clips_itself(settings: dict[str, Any]) -> bool:
    """Return whether `without_waits` applies to a resolved configuration.

    DeepSpeed's own norm is needed to unscale fp16, and where it shards gradients by stage 3, hands
    them to the host (ZenFlow too), or accumulates them in float32.
    """
    zero = settings.get("zero_optimization", {})
    offload = (zero.get("offload_optimizer") or {}).get("device", "none")
    return (
        not settings["fp16"]["enabled"]
        and zero.get("stage", 0) < 3
        and offload == "none"
        and "zenflow" not in zero
        and "data_types" not in settings
    )


def without_waits(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without clipping and checks for overflow.

    DeepSpeed looks for NaN in each gradient, and waits for the device at every group of parameters:
    with 128 pairs, half of a step of BERT-base on an H200. `RoutedAdamW.clip` replaces both.
    """
    changed: dict[str, Any] = {"gradient_clipping": 0.0}
    zero = settings.get("zero_optimization", {})
    if zero.get("stage", 0) > 0:
        changed["zero_optimization"] = {**zero, "compute_grad_norm": False}
    if settings["bf16"]["enabled"]:
        changed["bf16"] = {**settings["bf16"], "check_grad_overflow": False}
    return settings | changed


def _refuse_misspelt(given: dict[str, Any], path: str | None) -> None:
    for key in sorted(given.keys() - set(_DECISIVE)):
        if close := get_close_matches(key, _DECISIVE, n=1, cutoff=0.8):
            problem = "unknown key in the DeepSpeed configuration"
            raise ConfigError(problem, path=path, value=key, fix=f"write {close[0]}")


def _refuse(given: dict[str, Any], path: str | None, precision: Precision) -> None:
    for section in ("optimizer", "scheduler"):
        if section in given:
            raise ConfigError(
                f"the DeepSpeed configuration must not set {section}",
                path=path,
                fix=f"remove it and set the section {section!r} of the run's config",
            )
    zero = given.get("zero_optimization", {})
    for key, (value, effect) in _SPOILING.items():
        if zero.get(key) == value:
            problem = f"zero_optimization.{key} {str(value).lower()} {effect}"
            raise ConfigError(problem, path=path, fix="leave it out")
    stage = zero.get("stage", 0)
    if stage not in range(4):
        problem = "zero_optimization.stage is not 0, 1, 2 or 3"
        raise ConfigError(problem, path=path, value=stage)
    if precision != "fp32" and stage == 0:
        raise ConfigError(
            f"{precision} at ZeRO stage 0 trains without float32 master weights or a scaled loss",
            path=path,
            value={"zero_optimization.stage": stage},
            fix="use ZeRO stage 1, 2 or 3, or engine.precision fp32",
        )
    _refuse_types(given, path, precision)
    _refuse_offload(zero, stage, path)


def _refuse_types(given: dict[str, Any], path: str | None, precision: Precision) -> None:
    """Refuse numbers of fewer bits than those of ``precision``, which a run says it has."""
    if given.get("torch_autocast", {}).get("enabled"):
        raise ConfigError(
            "torch_autocast in the DeepSpeed configuration contradicts engine.precision",
            path=path,
            value=given["torch_autocast"],
            fix="leave it out, and choose engine.precision",
        )
    for half in ("bf16", "fp16"):
        key = f"{half}_master_weights_and_grads"
        if given.get(half, {}).get(key):
            problem = f"{half}.{key} trains without float32 master weights"
            raise ConfigError(problem, path=path, fix="leave it out")
    types = {
        "communication_data_type": given.get("communication_data_type"),
        "data_types.grad_accum_dtype": given.get("data_types", {}).get("grad_accum_dtype"),
    }
    for key, kind in types.items():
        if kind not in (None, "fp32", precision):
            problem = f"{key} in the DeepSpeed configuration may round gradients of {precision}"
            raise ConfigError(problem, path=path, value=kind, fix="write fp32, or leave it out")


def _refuse_offload(zero: dict[str, Any], stage: int, path: str | None) -> None:
    for section, lowest in _OFFLOADS_FROM.items():
        offload = zero.get(section) or {}
        if not isinstance(offload, dict):
            fix = "write {device: cpu}"
            raise ConfigError(f"{section} is not a mapping", path=path, value=offload, fix=fix)
        target = offload.get("device", "none")
        if target not in ("none", "cpu"):
            raise ConfigError(
                f"{section} supports only the host's memory",
                path=path,
                value=target,
                fix="use device cpu",
            )
        if target == "cpu" and stage < lowest:
            raise ConfigError(
                f"ZeRO stage {stage} would ignore {section}",
                path=path,
                fix=f"use stage {' or '.join(map(str, range(lowest, 4)))}, or leave it out",
            )


def _fill(
    given: dict[str, Any], required: dict[str, Any], path: str | None, prefix: str
) -> dict[str, Any]:
    filled = dict(given)
    for key, value in required.items():
        if isinstance(value, dict):
            filled[key] = _fill(given.get(key, {}), value, path, f"{prefix}{key}.")
        elif given.get(key, "auto") not in ("auto", value):
            raise ConfigError(
                f"{prefix}{key} in the DeepSpeed configuration contradicts the run, "
                f"which needs {value}",
                path=path,
                value=given[key],
                fix='write "auto" or leave it out',
            )
        else:
            filled[key] = value
    return filled
