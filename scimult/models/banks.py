"""Layers that exist once per route.

Shape legend: T tokens of all rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ExpertBank(nn.Module):
    """Parallel copies of one layer; every row passes through exactly one of them.

    A shared layer is a bank of one expert. With several, tokens arrive sorted by route and
    each expert sees its own slice: an expert without rows is not run and gets no gradient.
    """

    def __init__(self, make_expert: Callable[[], nn.Module], count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(make_expert() for _ in range(count))

    def forward(
        self, x_TD: Tensor, route_slices: list[tuple[int, slice]], *others: Tensor
    ) -> Tensor:
        """Apply each token's expert; all inputs are sorted by route, as in ``route_slices``."""
        if len(self.experts) == 1:
            return self._run(0, x_TD, *others)
        if len(route_slices) == 1:
            return self._run(route_slices[0][0], x_TD, *others)
        # Split, not sliced: the gradient of each slice would be as large as all tokens.
        sizes = [tokens.stop - tokens.start for _, tokens in route_slices]
        columns = (torch.split(each, sizes) for each in (x_TD, *others))
        routes = (route for route, _ in route_slices)
        return torch.cat([self._run(*each) for each in zip(routes, *columns, strict=True)])

    def of(self, route: int) -> nn.Module:
        """Return the expert of a route, or the shared one."""
        return self.experts[route if len(self.experts) > 1 else 0]

    def _run(self, route: int, *inputs: Tensor) -> Tensor:
        output: Tensor = self.of(route)(*inputs)
        return output
