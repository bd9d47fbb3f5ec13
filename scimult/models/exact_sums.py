"""LayerNorms and embeddings whose gradients are float32 sums over tokens, on CPUs too.

In bfloat16 torch's CPU kernels add them up in bfloat16, whose eight bits lose what is below
1/256 of the sum so far: at 20,000 tokens the gradient of a LayerNorm's bias is 0.23 of the true
one, that of a frequent word 0.3. Sums of linears' gradients, of broadcasts and over heads are
float32 inside their kernels, as all are on GPUs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm``, in float32 where its kernel adds gradients up in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own dtype."""
        if not _adds_up_in_bfloat16(x):
            return super().forward(x)
        weight, bias = (None if p is None else p.float() for p in (self.weight, self.bias))
        normed = F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return normed.to(x.dtype)


class Embedding(nn.Embedding):
    """``torch.nn.Embedding`` of a vector of ids, each as often as it likes."""

    def forward(self, ids_T: Tensor) -> Tensor:
        """Return the rows of ``ids_T``, shape ``(T, D)``."""
        if not _adds_up_in_bfloat16(self.weight):
            return super().forward(ids_T)
        # The same rows; on GPUs its gradient would be the one that adds up in bfloat16.
        return self.weight.index_select(0, ids_T)


def _adds_up_in_bfloat16(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.bfloat16
