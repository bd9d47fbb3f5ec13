"""Linear heads on embeddings, trained with the encoder but not part of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SPREAD = 0.02


class LinearHead(nn.Module):
    """An affine map from embeddings to the outputs of a task.

    Parameters
    ----------
    width, outputs : int
        Dimensions of embeddings, and number of outputs.
    seed : int
        Seed of the weights, normal with standard deviation 0.02; biases start at 0.
    """

    def __init__(self, width: int, outputs: int, seed: int) -> None:
        super().__init__()
        weights = torch.randn(outputs, width, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(weights * _SPREAD)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self) -> Tensor:
        """Return the weights with the biases as last column, in float32 at least."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        return torch.cat([self.weight, self.bias[:, None]], dim=1).to(wide)


def apply_head(value_KD1: Tensor, embeddings_BD: Tensor) -> Tensor:
    """Apply a head, given the value that its forward returned; shape ``(B, K)``."""
    value_KD1 = value_KD1.to(embeddings_BD.dtype)
    return F.linear(embeddings_BD, value_KD1[:, :-1], value_KD1[:, -1])
