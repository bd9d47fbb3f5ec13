"""Self-attention over packed rows, in the fastest exact form that the device offers.

Shape legend: B rows, L tokens of the longest row, T tokens of all rows, H heads,
K width of a head, I tokens of an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.models.packing import AttentionGroup, PackingPlan


@dataclass(frozen=True)
class Context:
    """Keys and values, by route, that every row of the route attends to beside its own.

    Each value has the shape ``(I, 2, H, K)``.
    """

    by_route: dict[int, Tensor]


def attend(
    qkv_T3HK: Tensor, plan: PackingPlan, dropout: float, context: Context | None = None
) -> Tensor:
    """Let every token attend to the tokens of its own row, and to its route's context.

    Parameters
    ----------
    qkv_T3HK : Tensor
        Queries, keys and values of the packed tokens, shape ``(T, 3, H, K)``.
    plan : PackingPlan
        Where the rows begin and which of them are handled together.
    dropout : float
        Dropout probability on the attention weights; 0 outside training.
    context : Context, optional
        What rows read beside themselves.

    Returns
    -------
    Tensor
        Shape ``(T, H, K)``.
    """
    half = qkv_T3HK.dtype in (torch.float16, torch.bfloat16)
    if qkv_T3HK.is_cuda and half and dropout == 0.0 and context is None:
        return _variable_length(qkv_T3HK, plan)
    outputs = [_attend_group(qkv_T3HK[g.tokens], g, dropout, context) for g in plan.groups]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _variable_length(qkv_T3HK: Tensor, plan: PackingPlan) -> Tensor:
    """Use the fused kernel that reads packed rows directly (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    ends_B = plan.starts_B + plan.lengths_B
    bounds = F.pad(ends_B, (1, 0)).to(torch.int32)
    q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
    output = varlen_attn(q_THK, k_THK, v_THK, bounds, bounds, plan.longest, plan.longest)
    assert isinstance(output, Tensor)
    return output


def _attend_group(
    qkv_t3HK: Tensor, group: AttentionGroup, dropout: float, context: Context | None
) -> Tensor:
    heads, width = qkv_t3HK.shape[2:]
    if group.index_BL is None:
        padded = qkv_t3HK.view(group.rows, group.longest, 3, heads, width)
    else:
        padded = qkv_t3HK[group.index_BL]
    q_BHLK, k_BHLK, v_BHLK = padded.permute(2, 0, 3, 1, 4).unbind(0)
    mask = None if group.mask_BL is None else group.mask_BL[:, None, None, :]
    if context is not None:
        read_2HIK = context.by_route[group.route].permute(1, 2, 0, 3)
        k_HIK, v_HIK = read_2HIK.expand(group.rows, *read_2HIK.shape).unbind(1)
        k_BHLK, v_BHLK = torch.cat([k_HIK, k_BHLK], 2), torch.cat([v_HIK, v_BHLK], 2)
        if mask is not None:
            mask = F.pad(mask, (read_2HIK.shape[2], 0), value=True)
    if qkv_t3HK.dtype == torch.bfloat16 and qkv_t3HK.device.type == "cpu":
        output_BHLK = _attend_by_products(q_BHLK, k_BHLK, v_BHLK, mask, dropout)
    else:
        output_BHLK = F.scaled_dot_product_attention(
            q_BHLK, k_BHLK, v_BHLK, attn_mask=mask, dropout_p=dropout
        )
    flat = output_BHLK.transpose(1, 2).reshape(-1, heads, width)
    return flat if group.places_T is None else flat[group.places_T]


def _attend_by_products(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Two matrix products and a float32 softmax.

    On CPUs with bfloat16 products this is 1.4 to 5 times faster, forward and backward,
    than torch's fused kernel, which computes its backward in slow bfloat16 loops.
    """
    scale = q_BHLK.shape[-1] ** -0.5
    scores_BHLL = (q_BHLK @ k_BHLK.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores_BHLL = scores_BHLL.masked_fill(~mask, float("-inf"))
    weights_BHLL = scores_BHLL.softmax(-1).to(q_BHLK.dtype)
    if dropout:
        weights_BHLL = F.dropout(weights_BHLL, dropout)
    output_BHLK: Tensor = weights_BHLL @ v_BHLK
    return output_BHLK
