"""Bottleneck adapters per route, and AdapterFusion.

Shape legend: T tokens of all rows, D width, E adapters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.banks import ExpertBank
from scimult.models.layouts import AdapterLayout, Sublayer
from scimult.models.linear import Linear


class Adapter(nn.Module):
    """One adapter's change to a sub-layer's output: down, ReLU, up; initially zero."""

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down = Linear(width, bottleneck)
        self.up = Linear(bottleneck, width)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the change, shape ``(T, D)``."""
        change: Tensor = self.up(F.relu(self.down(x_TD)))
        return change

    def start_neutral(self) -> None:
        """Make the change zero."""
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)


class Fusion(nn.Module):
    """One route's attention over all adapters' outputs (AdapterFusion, equation 2).

    The values are V z with V = I + ``value_change``: weight decay pulls V towards the identity, as
    AdapterFusion regularises it (section 3.2), not towards zero.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value_change = Linear(width, width, bias=False)

    def forward(self, h_TD: Tensor, z_TED: Tensor) -> Tensor:
        """Mix the adapters' outputs ``z_TED``, with the sub-layer's output ``h_TD`` as query."""
        scores_TE = torch.einsum("td,ted->te", self.query(h_TD), self.key(z_TED))
        values_TED = z_TED + self.value_change(z_TED)
        mixed: Tensor = torch.einsum("te,ted->td", scores_TE.softmax(-1), values_TED)
        return mixed

    def start_neutral(self) -> None:
        """Make the values the outputs themselves, so that equal adapters fuse to their output."""
        nn.init.zeros_(self.value_change.weight)


class AdapterBank(nn.Module):
    """The adapters after one sub-layer: one per route, or fused.

    For a sub-layer with input x, output h and LayerNorm LN, ``pfeiffer`` reads LN(x + h) and
    ``houlsby`` reads h; both add their change to h before residual and LayerNorm, so that zero
    change gives the plain block.
    """

    def __init__(self, width: int, layout: AdapterLayout) -> None:
        super().__init__()
        self.reads_normed = layout.placement == "pfeiffer"
        self.bank = ExpertBank(lambda: Adapter(width, layout.width), layout.count)
        self.fusion = ExpertBank(lambda: Fusion(width), layout.count) if layout.fusion else None

    def forward(
        self, x_TD: Tensor, h_TD: Tensor, norm: nn.Module, slices: list[tuple[int, slice]]
    ) -> Tensor:
        """Return the changed sub-layer output, shape ``(T, D)``."""
        read_TD = norm(x_TD + h_TD) if self.reads_normed else h_TD
        if self.fusion is None:
            changed: Tensor = h_TD + self.bank(read_TD, slices)
            return changed
        z_TED = torch.stack([h_TD + adapter(read_TD) for adapter in self.bank.experts], dim=1)
        fused: Tensor = self.fusion(h_TD, slices, z_TED)
        return fused


def adapters_after(
    sublayer: Sublayer, width: int, layout: AdapterLayout | None
) -> AdapterBank | None:
    """Return the adapters that follow ``sublayer``, if any do."""
    if layout is None or (sublayer == "attention" and layout.placement == "pfeiffer"):
        return None
    return AdapterBank(width, layout)
