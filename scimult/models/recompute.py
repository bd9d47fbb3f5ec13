"""Blocks whose activations are computed a second time instead of kept."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_block(block: nn.Module, x_TD: Tensor, *arguments: Any, recompute: bool) -> Tensor:
    """Run a block; with ``recompute`` it keeps its input alone and runs again for gradients.

    The second run draws the same dropout. Tensors within ``arguments`` get their gradients too.
    """
    if not recompute:
        output: Tensor = block(x_TD, *arguments)
        return output
    again: Tensor = checkpoint(block, x_TD, *arguments, use_reentrant=False)
    return again
