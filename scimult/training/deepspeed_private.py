"""All our uses of DeepSpeed internals, outside its documented interface.

Any release may change them silently. `require_names` refuses a release that lacks one before the
first step; ``tests/training/test_deepspeed_private.py`` runs the rest under every ZeRO stage. The
range in ``setup.cfg`` is the tested one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from scimult.errors import ConfigError

TESTED = "deepspeed>=0.19.8,<0.20"
_LOSS_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_OF_STAGE: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("_lazy_init_hp_params_optimizer_state", "averaged_gradients"),
    2: ("_lazy_init_hp_params_optimizer_state", "averaged_gradients"),
    3: (
        "_set_fp32_optimizer_param_groups",
        "_clear_fp32_optimizer_param_groups",
        "grad_partitions_flat_buffer",
    ),
}


def require_names(engine: Any) -> None:
    """Check that an engine has all the names used below.

    Raises
    ------
    ConfigError
        Naming those that this release of DeepSpeed lacks.
    """
    import deepspeed

    stage = engine.zero_optimization_stage()
    trained = next(p for p in engine.module.parameters() if p.requires_grad)
    needed: list[tuple[Any, tuple[str, ...]]] = [
        (deepspeed.ops, ("__compatible_ops__",)),
        (deepspeed.comm.comm, ("cdb",)),
        (engine.optimizer, _OF_STAGE[stage]),
        (trained, ("ds_tensor",) if stage == 3 else ()),
    ]
    if engine.fp16_enabled():
        scaler = getattr(engine.optimizer, "loss_scaler", None)
        dynamic = getattr(scaler, "dynamic", True)
        needed.append((scaler, ("dynamic", *_LOSS_SCALER) if dynamic else ()))
    missing = [name for holder, names in needed for name in names if not hasattr(holder, name)]
    if missing:
        raise ConfigError(
            f"DeepSpeed {deepspeed.__version__} has no {', '.join(missing)} under ZeRO stage "
            f"{stage}",
            fix=f"pip install '{TESTED}'",
        )


def check_sections(settings: dict[str, Any]) -> None:
    """Check that DeepSpeed knows the options of its sections, before a run writes.

    Raises
    ------
    ConfigError
        Naming those with an unknown name or a value that it refuses.
    """
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    models = {
        "zero_optimization": DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
    }
    for section, model in models.items():
        try:
            model(**settings.get(section, {}))
        except ValidationError as error:
            wrong = [
                ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]]))
                for each in error.errors()
            ]
            raise ConfigError(
                f"DeepSpeed does not understand {section}: {'; '.join(wrong)}",
                fix="correct these options, or leave them out",
            ) from None


def use_gloo_between_cpus() -> None:
    """Disable the operator that DeepSpeed would compile for CPU ranks of one machine.

    It is compiled at first use; gloo needs no compiler (docs/decisions/deepspeed.md).
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def load_muon_uncompiled() -> None:
    """Import Muon, which every engine looks for in its optimizer, without what would compile it.

    Its decorator loads torch's compiler: seconds at each start, and no run of ours uses Muon.
    """
    from deepspeed.runtime import compiler

    compile_it = compiler.compile
    compiler.compile = lambda: lambda function: function
    try:
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compile_it


def restore_linear() -> None:
    """Give back torch's own linear function, which stage 3 replaces for the rest of the process.

    Its own saves the memory of gathered weights, and takes longer; other models have no use for it.
    """
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses

    # Absent before the first engine of stage 3.
    own = getattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", nn.functional.linear)
    nn.functional.linear = own


def leave_group() -> bool:
    """Leave the process group through DeepSpeed, so that the next run can make its own.

    Returns
    -------
    bool
        Whether DeepSpeed knew of the group; otherwise nothing is done.
    """
    from deepspeed import comm

    if comm.comm.cdb is None:
        return False
    comm.destroy_process_group()
    return True


def link_moments(engine: Any) -> None:
    """Link the optimizer's moments to parameters under stages 1 and 2, as after a first step."""
    if engine.zero_optimization_stage() in (1, 2):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


@contextmanager
def flat_groups(engine: Any) -> Iterator[None]:
    """Expose stage 3's flat partitions in the optimizer's groups, hidden between steps."""
    if engine.zero_optimization_stage() != 3:
        yield
        return
    engine.optimizer._set_fp32_optimizer_param_groups()
    try:
        yield
    finally:
        engine.optimizer._clear_fp32_optimizer_param_groups()


def clear_gradients(engine: Any) -> None:
    """Clear the gradients that stage 3 keeps after a step.

    It overwrites them only where the next step has gradients: those of experts without rows
    would remain and count in the norm that clipping uses.
    """
    if engine.zero_optimization_stage() == 3:
        engine.optimizer.grad_partitions_flat_buffer.zero_()


def drop_gradients(engine: Any) -> None:
    """Drop the gradients that are not reduced yet, so that leaving DeepSpeed reduces nothing."""
    for parameter in engine.module.parameters():
        parameter.grad = None
        # Where gradients are added up in float32.
        parameter.grad_accum = None


def gradients(engine: Any) -> list[Tensor]:
    """Return this rank's share of the gradients, before a step; under stage 0 all of them."""
    stage = engine.zero_optimization_stage()
    if stage == 0:
        return [p.grad for p in engine.module.parameters() if p.grad is not None]
    assert stage < 3, "gradients of stage 3 are elsewhere"
    groups: dict[int, list[Tensor]] = engine.optimizer.averaged_gradients
    return [gradient for group in groups.values() for gradient in group]


def partition_size(engine: Any, parameter: nn.Parameter) -> int | None:
    """Return the size of each rank's partition of a parameter under stage 3, else ``None``."""
    if engine.zero_optimization_stage() != 3:
        return None
    partitioned: Any = parameter
    size: int = partitioned.ds_tensor.numel()
    return size


def loss_scale_state(engine: Any) -> dict[str, float]:
    """Return the state of fp16's dynamic loss scaling; empty without it."""
    if not _scales_dynamically(engine):
        return {}
    return {name: getattr(engine.optimizer.loss_scaler, name) for name in _LOSS_SCALER}


def set_loss_scale_state(engine: Any, state: dict[str, float]) -> None:
    """Restore the result of `loss_scale_state`; a constant scale stays as configured."""
    if _scales_dynamically(engine):
        for name, value in state.items():
            setattr(engine.optimizer.loss_scaler, name, value)


def _scales_dynamically(engine: Any) -> bool:
    return bool(engine.fp16_enabled() and engine.optimizer.loss_scaler.dynamic)
