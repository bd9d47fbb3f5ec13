"""Linear layers whose float32 products, gradients included, are oneDNN's where that is faster.

torch multiplies float32 by MKL, which makes no use of AVX-512 on AMD's processors.

Shape legend: N rows, D width of the input, M of the output.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.products import linear_by_onednn, multiplies_by_onednn

# At a new shape oneDNN needs half a millisecond, in which MKL does half of this.
_LEAST_OPERATIONS = 10**8


class Linear(nn.Linear):
    """``torch.nn.Linear``, by the faster library."""

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias``, shape ``(N, M)``."""
        if not _prefers_onednn(x_ND, self.weight):
            if len(x_ND) == 1 and x_ND.device.type == "cpu":
                # MKL sums a single row in an order that depends on where the weights lie.
                return super().forward(torch.cat([x_ND, x_ND]))[:1]
            return super().forward(x_ND)
        product: Any = _Product.apply
        output_NM: Tensor = product(x_ND.contiguous(), self.weight, self.bias)
        return output_NM


def _prefers_onednn(x_ND: Tensor, weight_MD: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x_ND.device.type == "cpu"
        and x_ND.dtype == weight_MD.dtype == torch.float32
        and 2 * x_ND.numel() * len(weight_MD) >= _LEAST_OPERATIONS
        and x_ND.dim() == 2
        and multiplies_by_onednn()
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_MD: Tensor, bias_M: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_ND, weight_MD)
        return linear_by_onednn(x_ND, weight_MD, bias_M)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_MD = ctx.saved_tensors
        # The gradient of a sum is a view whose rows are one row.
        gradient_NM = gradients[0].contiguous()
        # oneDNN's operator has no gradient, which a second derivative needs.
        by = F.linear if torch.is_grad_enabled() else linear_by_onednn
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            by(gradient_NM, weight_MD.T) if of_x else None,
            by(gradient_NM.T, x_ND.T) if of_weight else None,
            gradient_NM.sum(0) if of_bias else None,
        )
