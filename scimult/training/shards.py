"""A run's state as whole tensors by name, independent of ZeRO stage and number of ranks.

DeepSpeed's own files depend on both. Whole tensors are gathered one at a time when saved, and
each rank takes its part of them when they are loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scimult import distributed
from scimult.errors import CheckpointError
from scimult.training import deepspeed_private
from scimult.training.optim import RoutedAdamW

MOMENTS = ("exp_avg", "exp_avg_sq")


class StateShards:
    """Float32 weights, Adam moments and update counts of a DeepSpeed engine.

    ``optimizer`` is the one inside DeepSpeed's, whose moments are created here; ``groups`` has the
    parameter names of each of its groups.
    """

    def __init__(self, engine: Any, optimizer: RoutedAdamW, groups: list[list[str]]) -> None:
        self._engine, self._optimizer, self._groups = engine, optimizer, groups
        self._parameters: dict[str, nn.Parameter] = dict(engine.module.named_parameters())
        with deepspeed_private.flat_groups(engine):
            optimizer.make_moments()
        deepspeed_private.link_moments(engine)

    @property
    def names(self) -> list[str]:
        """Names of the trained parameters."""
        return [name for names in self._groups for name in names]

    def whole(self, name: str, moment: str | None = None) -> Tensor:
        """Return a whole weight, or one of its moments, on the host; every rank must call it."""
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
        """Store this rank's part of a whole weight or moment."""
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        parameter = self._parameters[name]
        size = deepspeed_private.partition_size(self._engine, parameter)
        if size is not None:
            part = _padded_part(whole, size)
            if moment is None:
                safe_set_local_fp32_param(parameter, part)
            else:
                safe_set_local_optimizer_state(parameter, part, moment)
        elif self._engine.zero_optimization_stage() > 0:
            if moment is None:
                safe_set_full_fp32_param(parameter, whole)
            else:
                safe_set_full_optimizer_state(parameter, whole, moment)
        else:
            self._unsharded(parameter, moment).detach().copy_(whole)

    def _unsharded(self, parameter: nn.Parameter, moment: str | None) -> Tensor:
        if moment is None:
            return parameter
        sharded: Tensor = self._optimizer.state[parameter][moment]
        return sharded

    def updates(self) -> dict[str, int]:
        """Return how often Adam has updated each parameter, which differs between experts."""
        counts: dict[str, int] = {}
        with deepspeed_private.flat_groups(self._engine):
            for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                steps = [int(self._optimizer.state[piece]["step"]) for piece in group["params"]]
                # Unsharded, a group holds its parameters; else pieces that are updated together.
                by_name = steps if len(steps) == len(names) else [max(steps)] * len(names)
                counts |= dict(zip(names, by_name, strict=True))
        return counts

    def put_updates(self, counts: dict[str, int]) -> None:
        """Set how often each parameter has been updated.

        Raises
        ------
        CheckpointError
            If parameters of one group differ, which only ZeRO stage 0 can express.
        """
        with deepspeed_private.flat_groups(self._engine):
            for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
                updates = [counts[name] for name in names]
                if len(group["params"]) != len(names):
                    if len(set(updates)) > 1:
                        raise CheckpointError(
                            "weights of one group have different numbers of updates, which only "
                            "ZeRO stage 0 can continue",
                            value=names[updates.index(min(updates))],
                            fix="resume under stage 0",
                        )
                    updates = updates[:1] * len(group["params"])
                for piece, count in zip(group["params"], updates, strict=True):
                    self._optimizer.state[piece]["step"].fill_(float(count))


def _padded_part(whole: Tensor, size: int) -> Tensor:
    """Return this rank's ``size`` entries; ZeRO-3 pads the last rank's with zeros."""
    flat = whole.flatten()
    start = min(distributed.rank() * size, flat.numel())
    part = flat[start : start + size]
    return torch.cat([part, part.new_zeros(size - part.numel())])
