"""Pool token states into one embedding per row.

Shape legend: B rows, T tokens of all rows, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.models.packing import PackingPlan


def mean_of_tokens(x_TD: Tensor, plan: PackingPlan) -> Tensor:
    """Return the mean token state of each row, shape ``(B, D)``, summed in float32 at least."""
    wide_TD = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    none_BD = wide_TD.new_zeros(len(plan.starts_B), x_TD.shape[-1])
    sums_BD = none_BD.index_add(0, plan.row_of_token_T, wide_TD)
    return (sums_BD / plan.lengths_B[:, None]).to(x_TD.dtype)


def state_at(x_TD: Tensor, plan: PackingPlan, position: int) -> Tensor:
    """Return the state at a position of each row, shape ``(B, D)``.

    Negative positions count from the end; positions beyond a row take its nearest token.
    """
    if position == 0:
        return x_TD[plan.starts_B]
    if position > 0:
        within_B = (plan.lengths_B - 1).clamp(max=position)
    else:
        within_B = (plan.lengths_B + position).clamp(min=0)
    return x_TD[plan.starts_B + within_B]
