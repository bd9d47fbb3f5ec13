"""Every name that we touch of DeepSpeed beside its documented interface, and nothing else.

A release may change them without a word. `require_names` refuses one that did before a step is
made; ``tests/training/test_deepspeed_private.py`` runs the rest under every ZeRO stage. The range
in ``setup.cfg`` is what that was done with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from scimult.errors import ConfigError

TESTED = "deepspeed>=0.19.8,<0.20"
_LOSS_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_OF_STAGE: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("_lazy_init_hp_params_optimizer_state",),
    2: ("_lazy_init_hp_params_optimizer_state",),
    3: (
        "_set_fp32_optimizer_param_groups",
        "_clear_fp32_optimizer_param_groups",
        "grad_partitions_flat_buffer",
    ),
}
_OF_PARAMETER: dict[int, tuple[str, ...]] = {0: (), 1: (), 2: (), 3: ("ds_tensor",)}


def require_names(engine: Any) -> None:
    """Check that an engine has all that is used below.

    Raises
    ------
    ConfigError
        Naming what this release of DeepSpeed lacks.
    """
    import deepspeed

    stage = engine.zero_optimization_stage()
    trained = next(p for p in engine.module.parameters() if p.requires_grad)
    needed: list[tuple[Any, tuple[str, ...]]] = [
        (deepspeed.ops, ("__compatible_ops__",)),
        (deepspeed.comm.comm, ("cdb",)),
        (engine.optimizer, _OF_STAGE[stage]),
        (trained, _OF_PARAMETER[stage]),
    ]
    if engine.fp16_enabled():
        scaler = getattr(engine.optimizer, "loss_scaler", None)
        needed.append((scaler, ("dynamic", *_LOSS_SCALER)))
    missing = [name for holder, names in needed for name in names if not hasattr(holder, name)]
    if missing:
        raise ConfigError(
            f"DeepSpeed {deepspeed.__version__} has no {', '.join(missing)} under ZeRO stage "
            f"{stage}",
            fix=f"pip install '{TESTED}'",
        )


def use_gloo_between_cpus() -> None:
    """Leave out the operator that DeepSpeed would compile for CPU ranks of one machine.

    It is compiled at first use; gloo needs no compiler (docs/decisions/deepspeed.md).
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def leave_group() -> bool:
    """Leave the process group if DeepSpeed has taken note of it, and let DeepSpeed forget it.

    Returns
    -------
    bool
        Whether it had. A next run in this process makes a group of its own.
    """
    from deepspeed import comm

    if comm.comm.cdb is None:
        return False
    comm.destroy_process_group()
    return True


def link_moments(engine: Any) -> None:
    """Let stages 1 and 2 find the optimizer's moments by parameter, as after a first step."""
    if engine.zero_optimization_stage() in (1, 2):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


@contextmanager
def flat_groups(engine: Any) -> Iterator[None]:
    """Show stage 3's flat pieces in the optimizer's groups, which it hides between steps."""
    if engine.zero_optimization_stage() != 3:
        yield
        return
    engine.optimizer._set_fp32_optimizer_param_groups()
    try:
        yield
    finally:
        engine.optimizer._clear_fp32_optimizer_param_groups()


def clear_gradients(engine: Any) -> None:
    """Clear what stage 3 keeps of the gradients of a step.

    It overwrites them only where the next step has some: those of experts without rows would
    stay, and count in the norm that clipping uses.
    """
    if engine.zero_optimization_stage() == 3:
        engine.optimizer.grad_partitions_flat_buffer.zero_()


def partition_size(engine: Any, parameter: nn.Parameter) -> int | None:
    """Return how many numbers of a parameter each rank has under stage 3; ``None`` elsewhere."""
    if engine.zero_optimization_stage() != 3:
        return None
    held: Any = parameter
    size: int = held.ds_tensor.numel()
    return size


def loss_scale_state(engine: Any) -> dict[str, float]:
    """Return what fp16 has learned about scaling the loss; empty in other precisions."""
    if not engine.fp16_enabled() or not engine.optimizer.loss_scaler.dynamic:
        return {}
    return {name: getattr(engine.optimizer.loss_scaler, name) for name in _LOSS_SCALER}


def set_loss_scale_state(engine: Any, state: dict[str, float]) -> None:
    """Set what `loss_scale_state` returned."""
    for name, value in state.items():
        setattr(engine.optimizer.loss_scaler, name, value)
