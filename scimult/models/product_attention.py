"""Attention by matrix products, on CPUs whose fused kernel is slower or knows no dropout.

Shape legend: B rows, H heads, L tokens of the longest row, J keys, K width of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scimult.models.dropout import scaled_mask

# Sums of exponentials within these bounds lose nothing to the range of bfloat16 and float32.
_LEAST_SUM, _LARGEST_SUM = 1e-15, 1e33


def attends_by_products(device: torch.device, dtype: torch.dtype, dropout: float) -> bool:
    """Return whether `attend_by_products` is the faster way to attend.

    It holds a number for every pair of tokens. torch's fused kernel for CPUs has no dropout, and
    in bfloat16 it takes 1.4 to 5 times as long.
    """
    return device.type == "cpu" and (dropout > 0 or dtype == torch.bfloat16)


def attend_by_products(
    q_BHLK: Tensor, k_BHJK: Tensor, v_BHJK: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Return ``softmax(q @ k.T / sqrt(K)) @ v``, shape ``(B, H, L, K)``, on a CPU.

    Parameters
    ----------
    q_BHLK, k_BHJK, v_BHJK : Tensor
        Queries, keys and values, of one type.
    mask : Tensor or None
        Which keys a query sees, at least one; its shape broadcasts to ``(B, H, L, J)``.
    dropout : float
        Dropout probability on the attention weights.
    """
    product: Any = _Products.apply
    output_BHLK: Tensor = product(q_BHLK, k_BHJK, v_BHJK, mask, dropout)
    return output_BHLK


class _Products(torch.autograd.Function):
    """Attention that keeps exponentials, and their sums, instead of scores and weights.

    Its passes over all pairs of tokens are in the tensors' own type: torch's functions would
    convert them to float32 for a softmax, and keep both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHLK: Tensor,
        k_BHJK: Tensor,
        v_BHJK: Tensor,
        mask: Tensor | None,
        dropout: float,
    ) -> Tensor:
        ctx.scale = q_BHLK.shape[-1] ** -0.5
        # Heads lie side by side: each product, here and in the backward pass, would copy them.
        q_BHLK = (q_BHLK * ctx.scale).contiguous()
        k_BHJK, v_BHJK = k_BHJK.contiguous(), v_BHJK.contiguous()
        exponentials_BHLJ, sums_BHL1, ctx.balance = _exponentials(q_BHLK, k_BHJK, mask)
        dropped_BHLJ = exponentials_BHLJ
        if dropout:
            dropped_BHLJ = exponentials_BHLJ * scaled_mask(exponentials_BHLJ, dropout)
        output_BHLK = (dropped_BHLJ @ v_BHJK).div_(sums_BHL1)
        ctx.save_for_backward(q_BHLK, k_BHJK, v_BHJK, exponentials_BHLJ, dropped_BHLJ, sums_BHL1)
        return output_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BHLK: Tensor) -> tuple[Tensor | None, ...]:
        q_BHLK, k_BHJK, v_BHJK, exponentials_BHLJ, dropped_BHLJ, sums_BHL1 = ctx.saved_tensors
        # All gradients from here on are ``balance`` times too large.
        of_mixed_BHLK = gradient_BHLK.contiguous() / (sums_BHL1 / ctx.balance)
        of_v_BHJK = (dropped_BHLJ.transpose(-1, -2) @ of_mixed_BHLK).div_(ctx.balance)
        of_scores_BHLJ = (of_mixed_BHLK @ v_BHJK.transpose(-1, -2)).mul_(dropped_BHLJ)
        # As a softmax does: the gradients of a query's scores add up to 0.
        shift_BHL1 = of_scores_BHLJ.sum(-1, keepdim=True).div_(sums_BHL1)
        of_scores_BHLJ.addcmul_(exponentials_BHLJ, shift_BHL1, value=-1)
        of_q_BHLK = (of_scores_BHLJ @ k_BHJK).mul_(ctx.scale / ctx.balance)
        of_k_BHJK = (of_scores_BHLJ.transpose(-1, -2) @ q_BHLK).div_(ctx.balance)
        return of_q_BHLK, of_k_BHJK, of_v_BHJK, None, None


def _exponentials(
    q_BHLK: Tensor, k_BHJK: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, float]:
    """Return the exponentials of all scores, 0 for unseen keys, each query's sum, and a balance.

    A gradient divided by a large sum would be 0 in float32's range, and one multiplied by a large
    exponential infinite: by the balance, about the root of the largest sum, it is neither.
    Where sums leave the range, each row's largest score is taken off first, as in a softmax, which
    takes a copy of the scores in float32.
    """
    # float16 holds no exponential below -17.
    if q_BHLK.dtype != torch.float16:
        exponentials_BHLJ = (q_BHLK @ k_BHJK.transpose(-1, -2)).exp_()
        sums_BHL1 = _sums_of_seen(exponentials_BHLJ, mask)
        least, largest = torch.aminmax(sums_BHL1)
        if _LEAST_SUM <= least <= largest <= _LARGEST_SUM:
            # A power of two, which rounds nothing.
            return exponentials_BHLJ, sums_BHL1, 2.0 ** round(math.log2(largest) / 2)
    exponentials_BHLJ = _shifted_exponentials(q_BHLK @ k_BHJK.transpose(-1, -2), mask)
    return exponentials_BHLJ, _sums_of_seen(exponentials_BHLJ, mask), 1.0


def _sums_of_seen(exponentials_BHLJ: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        exponentials_BHLJ.mul_(mask.to(exponentials_BHLJ.dtype))
    return exponentials_BHLJ.sum(-1, keepdim=True)


def _shifted_exponentials(scores_BHLJ: Tensor, mask: Tensor | None) -> Tensor:
    wide_BHLJ = scores_BHLJ.to(torch.promote_types(scores_BHLJ.dtype, torch.float32))
    if mask is not None:
        wide_BHLJ = wide_BHLJ.masked_fill(~mask, float("-inf"))
    return (wide_BHLJ - wide_BHLJ.amax(-1, keepdim=True)).exp_().to(scores_BHLJ.dtype)
