"""Low-rank updates of linears per route (LoRA).

Shape legend: T tokens of all rows, D width in, O width out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scimult.models.banks import ExpertBank
from scimult.models.layouts import LowRankLayout, LowRankTarget


class LowRankUpdate(nn.Module):
    """``scale * B A x``: the update of one linear for one route; initially zero."""

    def __init__(self, width_in: int, width_out: int, layout: LowRankLayout) -> None:
        super().__init__()
        self.scale = layout.alpha / layout.rank
        self.down = nn.Linear(width_in, layout.rank, bias=False)
        self.up = nn.Linear(layout.rank, width_out, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the update, shape ``(T, O)``."""
        update: Tensor = self.up(self.down(x_TD)) * self.scale
        return update

    def start_neutral(self) -> None:
        """Make the update zero."""
        nn.init.zeros_(self.up.weight)


class LowRankUpdates(nn.Module):
    """Updates of linears that are computed as one product, whose i-th part is ``names[i]``.

    Query, key and value are one product in our blocks; each can still have its own update.
    """

    def __init__(
        self,
        names: Sequence[LowRankTarget],
        width_in: int,
        width_out: int,
        layout: LowRankLayout,
    ) -> None:
        super().__init__()
        self.names, self.width_out = list(names), width_out
        self.lora = nn.ModuleDict(
            {
                name: ExpertBank(lambda: LowRankUpdate(width_in, width_out, layout), layout.count)
                for name in names
                if name in layout.targets
            }
        )

    def forward(self, x_TD: Tensor, slices: list[tuple[int, slice]]) -> Tensor:
        """Return the updates side by side, shape ``(T, len(names) * O)``."""
        zero_TO = x_TD.new_zeros(()).expand(len(x_TD), self.width_out)
        parts = [
            self.lora[name](x_TD, slices) if name in self.lora else zero_TO for name in self.names
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def low_rank_updates(
    names: Sequence[LowRankTarget], width_in: int, width_out: int, layout: LowRankLayout | None
) -> LowRankUpdates | None:
    """Return the updates of these linears, ``None`` if the layout targets none of them."""
    if layout is None or not set(names) & set(layout.targets):
        return None
    return LowRankUpdates(names, width_in, width_out, layout)
