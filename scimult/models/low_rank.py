"""Low-rank updates of linears per route (LoRA).

Shape legend: T tokens of all rows, D width in, O width out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models.banks import ExpertBank
from scimult.models.layouts import LowRankLayout, LowRankTarget
from scimult.models.linear import Linear

# Below this share of the largest singular value, one is rounding.
_ROUNDING = 1e-12
_UP, _DOWN, _PRODUCT = ".up.weight", ".down.weight", ".product"


class LowRankUpdate(nn.Module):
    """``scale * B A x``: the update of one linear for one route; initially zero."""

    def __init__(self, width_in: int, width_out: int, layout: LowRankLayout) -> None:
        super().__init__()
        self.scale = layout.alpha / layout.rank
        self.down = Linear(width_in, layout.rank, bias=False)
        self.up = Linear(layout.rank, width_out, bias=False)

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


def with_products(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the two factors of each low-rank update by their product, in float64."""
    merged = dict(weights)
    for name in [name for name in weights if ".lora." in name and name.endswith(_UP)]:
        bank = name.removesuffix(_UP)
        up, down = merged.pop(name), merged.pop(bank + _DOWN)
        merged[bank + _PRODUCT] = up.double() @ down.double()
    return merged


def with_factors(
    weights: Mapping[str, Tensor], layout: LowRankLayout, models: int
) -> tuple[LowRankLayout, dict[str, Tensor]]:
    """Undo `with_products`, at the lowest rank that holds all sums of products of ``models``."""
    parts = {
        name.removesuffix(_PRODUCT): _decomposed(product, models * layout.rank)
        for name, product in weights.items()
        if name.endswith(_PRODUCT)
    }
    rounding = _ROUNDING * max(float(values[0]) for _, values, _ in parts.values())
    ranks = [int((values > rounding).sum()) for _, values, _ in parts.values()]
    rank = max(layout.rank, *ranks)
    factors = {name: weight for name, weight in weights.items() if not name.endswith(_PRODUCT)}
    for bank, (u, values, v) in parts.items():
        absent = max(0, rank - len(values))
        up, down = u * values.sqrt(), values.sqrt()[:, None] * v
        factors[bank + _UP] = F.pad(up[:, :rank], (0, absent)).float()
        factors[bank + _DOWN] = F.pad(down[:rank], (0, 0, 0, absent)).float()
    alpha = layout.alpha * rank / layout.rank
    return layout.model_copy(update={"rank": rank, "alpha": alpha}), factors


def _decomposed(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, singular values and V of a matrix of at most this rank.

    Its products with that many random vectors span its columns (Halko et al., 2011, section 1.3),
    which is many times faster than a decomposition of the whole matrix.
    """
    width = matrix.shape[1]
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(width, min(rank, width), dtype=matrix.dtype, generator=generator)
    basis, _ = torch.linalg.qr(matrix @ vectors)
    u, values, v = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ u, values, v
