"""Float32 sums of half-precision gradients over the passes of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GradientSums:
    """Takes the gradients of a module pass by pass and gives their sums back, rounded once.

    Autograd adds each pass to what is there in the parameter's own dtype; over hundreds of
    chunks, bfloat16 loses more by that than within any of them. Costs four bytes a parameter
    while a step has several passes. Gradients keep their tensors, because sharded engines
    refuse others.
    """

    def __init__(self, module: nn.Module) -> None:
        half = (torch.float16, torch.bfloat16)
        self._parameters = [p for p in module.parameters() if p.requires_grad and p.dtype in half]
        self._sums: dict[nn.Parameter, Tensor] = {}

    def take(self) -> None:
        """Add the gradients of the pass that was just made, and zero them for the next one."""
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter in self._sums:
                self._sums[parameter] += parameter.grad
            else:
                self._sums[parameter] = parameter.grad.float()
            parameter.grad.zero_()

    def give_back(self) -> None:
        """Make the gradients the sums of all passes."""
        for parameter, total in self._sums.items():
            assert parameter.grad is not None, "the engine has dropped a gradient before the end"
            parameter.grad.copy_(total)
        self._sums = {}
