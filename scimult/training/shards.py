"""A run's state as whole tensors by name, whatever ZeRO stage and number of ranks hold it.

DeepSpeed's own files are laid out by stage and rank. Whole tensors are not: they are gathered
one at a time when saved, and each rank takes its part of them when they are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scimult import distributed
from scimult.errors import CheckpointError
from scimult.training.optim import RoutedAdamW

MOMENTS = ("exp_avg", "exp_avg_sq")
_LOSS_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class StateShards:
    """Float32 weights, Adam's moments and counts of updates of a DeepSpeed engine.

    Parameters
    ----------
    engine : deepspeed.DeepSpeedEngine
        Holds the parameters, in one piece or partitioned.
    optimizer : RoutedAdamW
        The optimizer below DeepSpeed's. Its moments are made here if they are not there yet.
    groups : list of list of str
        Names of the parameters of each of its groups.
    """

    def __init__(self, engine: Any, optimizer: RoutedAdamW, groups: list[list[str]]) -> None:
        self._engine, self._optimizer, self._groups = engine, optimizer, groups
        self._parameters: dict[str, nn.Parameter] = dict(engine.module.named_parameters())
        with _FlatGroups(engine):
            optimizer.make_moments()
        # Stages 1 and 2 find moments by parameter only after this, or after the first step.
        if link := getattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state", None):
            link()

    @property
    def names(self) -> list[str]:
        """The parameters that are trained."""
        return [name for names in self._groups for name in names]

    def whole(self, name: str, moment: str | None = None) -> Tensor:
        """Return a weight, or a moment of it, on the host; every rank must call it."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        parameter = self._parameters[name]
        if moment is None:
            full = safe_get_full_fp32_param(parameter)
        else:
            full = safe_get_full_optimizer_state(parameter, moment)
        if full is None:
            full = self._unsharded(parameter, moment)
        whole: Tensor = full.detach().float().cpu().clone()
        return whole

    def put(self, name: str, whole: Tensor, moment: str | None = None) -> None:
        """Take this rank's part of a whole weight or moment."""
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        parameter: Any = self._parameters[name]
        if hasattr(parameter, "ds_id"):
            part = _padded_part(whole, parameter.ds_tensor.numel())
            if moment is None:
                safe_set_local_fp32_param(parameter, part)
            else:
                safe_set_local_optimizer_state(parameter, part, moment)
        elif hasattr(parameter, "_hp_mapping"):
            if moment is None:
                safe_set_full_fp32_param(parameter, whole)
            else:
                safe_set_full_optimizer_state(parameter, whole, moment)
        else:
            self._unsharded(parameter, moment).detach().copy_(whole)

    def _unsharded(self, parameter: nn.Parameter, moment: str | None) -> Tensor:
        if moment is None:
            return parameter
        found: Tensor = self._optimizer.state[parameter][moment]
        return found

    def updates(self) -> dict[str, int]:
        """Return how often Adam has updated each parameter: experts differ."""
        counts: dict[str, int] = {}
        with _FlatGroups(self._engine):
            for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                steps = [int(self._optimizer.state[held]["step"]) for held in group["params"]]
                # Unsharded, a group holds its parameters; else pieces that are updated as one.
                each = steps if len(steps) == len(names) else [max(steps)] * len(names)
                counts |= dict(zip(names, each, strict=True))
        return counts

    def put_updates(self, counts: dict[str, int]) -> None:
        """Set how often each parameter has been updated.

        Raises
        ------
        CheckpointError
            If parameters of one group differ, which only ZeRO stage 0 can express.
        """
        with _FlatGroups(self._engine):
            for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                each = [counts[name] for name in names]
                if len(group["params"]) != len(names):
                    if len(set(each)) > 1:
                        raise CheckpointError(
                            "some weights had no gradient in some steps under ZeRO stage 0, "
                            "which no other stage can continue",
                            value=names[each.index(min(each))],
                            fix="resume under stage 0",
                        )
                    each = each[:1] * len(group["params"])
                for held, count in zip(group["params"], each, strict=True):
                    self._optimizer.state[held]["step"].fill_(float(count))

    @property
    def loss_scale(self) -> dict[str, float]:
        """What fp16 has learned about scaling the loss; empty in other precisions."""
        scaler = self._scaler()
        return {} if scaler is None else {key: getattr(scaler, key) for key in _LOSS_SCALER}

    @loss_scale.setter
    def loss_scale(self, state: dict[str, float]) -> None:
        for key, value in state.items():
            setattr(self._scaler(), key, value)

    def _scaler(self) -> Any:
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        return scaler if getattr(scaler, "dynamic", False) else None


class _FlatGroups:
    """Shows ZeRO-3's flat pieces in the optimizer's groups, which DeepSpeed hides."""

    def __init__(self, engine: Any) -> None:
        zero = engine.optimizer
        self._zero = zero if hasattr(zero, "_set_fp32_optimizer_param_groups") else None

    def __enter__(self) -> None:
        if self._zero is not None:
            self._zero._set_fp32_optimizer_param_groups()

    def __exit__(self, *error: object) -> None:
        if self._zero is not None:
            self._zero._clear_fp32_optimizer_param_groups()


def _padded_part(whole: Tensor, size: int) -> Tensor:
    """Return this rank's ``size`` entries; ZeRO-3 pads the last rank's with zeros."""
    flat = whole.flatten()
    start = min(distributed.rank() * size, flat.numel())
    part = flat[start : start + size]
    return torch.cat([part, part.new_zeros(size - part.numel())])
