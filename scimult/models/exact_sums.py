"""LayerNorms and embeddings whose gradients are summed over tokens in float32, on CPUs too.

Torch's CPU kernels add bfloat16 gradients up in bfloat16, whose eight bits lose everything below
1/256 of the sum so far: at 20,000 tokens the gradient of a LayerNorm's bias is 0.23 of the true
one, that of a frequent word 0.3. Kernels of linears, broadcasts and heads already sum in float32,
as all kernels do on GPUs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm``, in float32 where its kernel would add gradients in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own dtype."""
        if not _adds_in_bfloat16(x):
            return super().forward(x)
        weight, bias = (None if p is None else p.float() for p in (self.weight, self.bias))
        normed = F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return normed.to(x.dtype)


class Embedding(nn.Embedding):
    """``torch.nn.Embedding`` of a vector of ids, which may repeat."""

    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the rows of ``ids_T``, shape ``(T, D)``."""
        if not _adds_in_bfloat16(self.weight):
            return super().forward(ids_T)
        # The same rows; on GPUs this is the kernel whose gradient adds in bfloat16.
        return self.weight.index_select(0, ids_T)


def _adds_in_bfloat16(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.bfloat16
