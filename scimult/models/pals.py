"""Projected attention layers: a small attention per route, parallel to every block.

Shape legend: T tokens of all rows, D width of the encoder, P width of the projection.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.attention import attend
from scimult.models.banks import ExpertBank
from scimult.models.layouts import PalLayout
from scimult.models.packing import PackingPlan


class PalProjections(nn.Module):
    """Projections to and from the small width, per route and shared by all blocks."""

    def __init__(self, width: int, layout: PalLayout) -> None:
        super().__init__()
        small, bias = layout.width, layout.bias
        self.down = ExpertBank(lambda: nn.Linear(width, small, bias=bias), layout.count)
        self.up = ExpertBank(lambda: nn.Linear(small, width, bias=bias), layout.count)

    def start_neutral(self) -> None:
        """Make every projected attention layer add nothing."""
        for expert in self.up.experts:
            assert isinstance(expert, nn.Linear)
            nn.init.zeros_(expert.weight)
            if expert.bias is not None:
                nn.init.zeros_(expert.bias)


class Pal(nn.Module):
    """``V_D g(V_E x)`` with g the block's own small multi-head attention, without output linear.

    With an activation, ``GELU(V_D g(V_E x))``. Attention weights are dropped as in the block.
    """

    def __init__(self, layout: PalLayout, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.heads, self.width, self.activation = layout.heads, layout.width, layout.activation
        self.qkv = ExpertBank(lambda: nn.Linear(layout.width, 3 * layout.width), layout.count)

    def forward(self, x_TD: Tensor, plan: PackingPlan, projections: PalProjections) -> Tensor:
        """Return what the layer adds to the block's output, shape ``(T, D)``."""
        slices = plan.route_slices
        small_TP = projections.down(x_TD, slices)
        qkv = self.qkv(small_TP, slices).view(-1, 3, self.heads, self.width // self.heads)
        dropout = self.dropout if self.training else 0.0
        mixed_TP = attend(qkv, plan, dropout, training=self.training).reshape(-1, self.width)
        added: Tensor = projections.up(mixed_TP, slices)
        return added if self.activation is None else F.gelu(added)
