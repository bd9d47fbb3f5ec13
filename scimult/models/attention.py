"""Self-attention over packed rows, in the fastest exact form available on the device.

Shape legend: B rows, L tokens of the longest row, T tokens of all rows, H heads,
K width of a head, N chunks of a row, C queries of a chunk, J keys that a chunk sees,
t tokens of one group, b rows of one group times N, I tokens of an instruction.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.models.packed_attention import MOST_ROWS, attend_packed, reads_packed_rows
from scimult.models.packing import AttentionGroup, PackingPlan
from scimult.models.product_attention import attend_by_products, attends_by_products
from scimult.models.short_attention import LONGEST, attend_short, reads_short_rows

# Extra keys and values for all rows of a route, by route, of shape ``(I, 2, H, K)``.
Context = dict[int, Tensor]


def attend(
    qkv_T3HK: Tensor,
    plan: PackingPlan,
    dropout: float,
    *,
    training: bool,
    window: int | None = None,
    context: Context | None = None,
) -> Tensor:
    """Let every token attend to the tokens of its own row, and to its route's context.

    The shape of the result is ``(T, H, K)``.

    Parameters
    ----------
    qkv_T3HK : Tensor
        Queries, keys and values of the packed tokens, shape ``(T, 3, H, K)``.
    plan : PackingPlan
        Row boundaries, and which rows are handled together.
    dropout : float
        Dropout probability on the attention weights; 0 outside training.
    training : bool
        Whether the model is training; else a CPU pads nothing.
    window : int, optional
        A token sees this many tokens on each side and itself; None: the whole row.
    context : Context, optional
        Extra keys and values; not together with a window.
    """
    assert window is None or context is None, "windowed attention takes no context"
    if window is not None and plan.longest <= window + 1:
        window = None
    device, dtype, width = qkv_T3HK.device, qkv_T3HK.dtype, qkv_T3HK.shape[-1]
    short = window is None and context is None and plan.longest <= LONGEST
    if short and reads_short_rows(device, dtype, width):
        return attend_short(qkv_T3HK, plan.rows_by_length, dropout)
    fits = context is None and len(plan.lengths) <= MOST_ROWS
    if fits and reads_packed_rows(device, dtype, width):
        return attend_packed(qkv_T3HK, plan.bounds, plan.longest, dropout, window)
    groups = plan.groups if training or device.type != "cpu" else plan.unpadded_groups
    # Split, not sliced: the gradient of each slice would be as large as all tokens.
    parts = torch.split(qkv_T3HK, [group.num_tokens for group in groups])
    outputs = [
        _attend_group(part_t3HK, group, dropout, window, context)
        for part_t3HK, group in zip(parts, groups, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_group(
    qkv_t3HK: Tensor,
    group: AttentionGroup,
    dropout: float,
    window: int | None,
    context: Context | None,
) -> Tensor:
    heads, width = qkv_t3HK.shape[2:]
    padded = qkv_t3HK
    if group.slots_T is not None:
        # Not a gather: its padding would read some token, and the backward pass would sort and
        # add up the gradients of all padding there.
        padded = qkv_t3HK.new_zeros(group.rows * group.longest, *qkv_t3HK.shape[1:])
        padded = padded.index_copy_(0, group.slots_T, qkv_t3HK)
    padded_BL3HK = padded.view(group.rows, group.longest, *qkv_t3HK.shape[1:])
    qkv_3BHLK = padded_BL3HK.permute(2, 0, 3, 1, 4)
    if window is not None and group.longest > 4 * window:
        output_BHLK = _attend_in_chunks(qkv_3BHLK, group.mask_BL, dropout, window)
    else:
        mask = None if group.mask_BL is None else group.mask_BL[:, None, None, :]
        if window is not None and group.longest > window + 1:
            mask = _window_mask(group, window, qkv_t3HK.device)
        q_BHLK, k_BHLK, v_BHLK = qkv_3BHLK.unbind(0)
        if context is not None:
            read_2HIK = context[group.route].permute(1, 2, 0, 3)
            k_BHIK, v_BHIK = read_2HIK.expand(group.rows, *read_2HIK.shape).unbind(1)
            k_BHLK, v_BHLK = torch.cat([k_BHIK, k_BHLK], 2), torch.cat([v_BHIK, v_BHLK], 2)
            if mask is not None:
                mask = F.pad(mask, (read_2HIK.shape[2], 0), value=True)
        output_BHLK = _attend_padded(q_BHLK, k_BHLK, v_BHLK, mask, dropout)
    flat = output_BHLK.transpose(1, 2).reshape(-1, heads, width)
    return flat if group.slots_T is None else flat.index_select(0, group.slots_T)


def _window_mask(group: AttentionGroup, window: int, device: torch.device) -> Tensor:
    """Return which keys each query sees, shape ``(B or 1, 1, L, L)``.

    Padding sees padding: the softmax of a query without any key would be NaN.
    """
    positions_L = torch.arange(group.longest, device=device)
    near_LL = (positions_L[:, None] - positions_L[None, :]).abs() <= window
    if group.mask_BL is None:
        return near_LL[None, None]
    return (near_LL & (group.mask_BL[:, None, :] | ~group.mask_BL[:, :, None]))[:, None]


def _attend_in_chunks(
    qkv_3BHLK: Tensor, real_BL: Tensor | None, dropout: float, window: int
) -> Tensor:
    """Attend within a window, in time and memory linear in L.

    Rows are cut into N chunks of C queries, which become rows of their own. A chunk holds
    J = C + 2 window keys, its own and a window on each side, of which each query sees a band.
    """
    _, rows, heads, longest, width = qkv_3BHLK.shape
    chunk = 2 * window
    chunks = -(-longest // chunk)
    spare = chunks * chunk - longest
    if real_BL is None:
        real_BL = torch.ones(1, longest, dtype=torch.bool, device=qkv_3BHLK.device)
    queries_BNC = F.pad(real_BL, (0, spare)).view(-1, chunks, chunk)
    keys_BNJ = F.pad(real_BL, (window, spare + window)).unfold(1, chunk + 2 * window, chunk)
    ahead_CJ = (
        torch.arange(chunk + 2 * window, device=real_BL.device)[None, :]
        - torch.arange(chunk, device=real_BL.device)[:, None]
    )
    band_CJ = (ahead_CJ >= 0) & (ahead_CJ <= 2 * window)
    seen_BNCJ = band_CJ & (keys_BNJ[:, :, None, :] | ~queries_BNC[..., None])
    mask = seen_BNCJ.expand(rows, -1, -1, -1).flatten(0, 1)[:, None]

    def per_chunk(x_BHNKJ: Tensor) -> Tensor:
        return x_BHNKJ.permute(0, 2, 1, 4, 3).flatten(0, 1)

    q_BHLK, k_BHLK, v_BHLK = qkv_3BHLK.unbind(0)
    q_BHNKC = F.pad(q_BHLK, (0, 0, 0, spare)).unfold(2, chunk, chunk)
    k_BHNKJ, v_BHNKJ = (
        F.pad(x_BHLK, (0, 0, window, spare + window)).unfold(2, chunk + 2 * window, chunk)
        for x_BHLK in (k_BHLK, v_BHLK)
    )
    output_bHCK = _attend_padded(
        per_chunk(q_BHNKC), per_chunk(k_BHNKJ), per_chunk(v_BHNKJ), mask, dropout
    )
    output_BNHCK = output_bHCK.view(rows, chunks, heads, chunk, width)
    output_BHLK = output_BNHCK.transpose(1, 2).reshape(rows, heads, chunks * chunk, width)
    return output_BHLK[:, :, :longest]


def _attend_padded(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Attend within padded rows by the fastest method for their dtype and device."""
    if attends_by_products(q_BHLK.device, q_BHLK.dtype, dropout):
        return attend_by_products(q_BHLK, k_BHLK, v_BHLK, mask, dropout)
    return F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, attn_mask=mask, dropout_p=dropout)
