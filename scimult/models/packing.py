"""Packed batches: the tokens of all rows one after another, no padding.

Shape legend: B rows, L tokens of the longest row of a group, T tokens of all rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scimult.hardware import send
from scimult.types import IntArray, TokenIds

# A group of rows is padded to its longest row for attention; rows this much longer than
# the group's shortest one start a new group. Between 1.1 and 1.5 speed hardly changes.
_GROUP_SPREAD = 1.25
_GROUP_SLACK = 8
_GROUP_TOKENS = 8192


@dataclass(frozen=True)
class PackedTexts:
    """Token ids of B rows, concatenated: ``tokens_T``, with the row lengths on the host.

    What was worked out about them is kept for further passes (``_kept``).
    """

    tokens_T: Tensor
    lengths: list[int]
    _kept: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device | str) -> PackedTexts:
        """Return the same rows, which are on the host, on ``device``."""
        (tokens_T,) = send([self.tokens_T], device)
        return PackedTexts(tokens_T, self.lengths)

    def plan(self, routes: int | Sequence[int]) -> PackingPlan:
        """Return how the rows run through the blocks, by one route or one per row."""
        key = routes if isinstance(routes, int) else tuple(routes)
        if key not in self._kept:
            self._kept[key] = PackingPlan.build(self.lengths, routes, self.tokens_T.device)
        plan: PackingPlan = self._kept[key]
        return plan

    def with_gap(self, place: int) -> PackedTexts:
        """Return the rows with one more token, 0, at ``place`` of each: see `open_gap`."""
        if ("gap", place) not in self._kept:
            self._kept["gap", place] = open_gap(self, place)
        texts: PackedTexts = self._kept["gap", place]
        return texts

    def __len__(self) -> int:
        return len(self.lengths)


def pack(rows: Sequence[TokenIds]) -> PackedTexts:
    """Concatenate token id arrays into a packed batch."""
    tokens = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return PackedTexts(torch.from_numpy(tokens.astype(np.int64)), [len(row) for row in rows])


def open_gap(texts: PackedTexts, place: int) -> PackedTexts:
    """Insert one token, 0, at ``place`` of every row.

    Rows must have at least ``place`` tokens.
    """
    plan = texts.plan(0)
    # Of the rows in the order of the plan: shortest first, while texts stay as they are.
    rows_T = plan.restore_B.argsort()[plan.row_of_token_T]
    moved_T = plan.order_T + rows_T + (plan.positions_T >= place)
    tokens_T = texts.tokens_T.new_zeros(len(texts.tokens_T) + len(texts))
    tokens_T.index_copy_(0, moved_T, texts.tokens_T[plan.order_T])
    return PackedTexts(tokens_T, [length + 1 for length in texts.lengths])


@dataclass(frozen=True)
class AttentionGroup:
    """Rows of similar length that attention handles as one padded block.

    ``places_T`` holds, for every packed token, its place in the flattened block; ``mask_BL``
    is true on real tokens. Both are ``None`` when no row is padded. All rows are of one route.
    """

    route: int
    num_tokens: int
    rows: int
    longest: int
    places_T: Tensor | None
    mask_BL: Tensor | None


@dataclass(frozen=True)
class PackingPlan:
    """How one packed batch runs through every block; computed once per batch.

    Rows are sorted by (route, length): each route has one slice of the tokens. ``bounds`` are
    the first tokens of the rows and the end of the last one, int32. ``rotations`` keeps cosine
    and sine of the tokens' rotary angles by their base, for blocks that rotate
    (`modern.rotations`). The host knows ``lengths`` and ``routes`` of the sorted rows; what has
    a number for each token is made on the device.
    """

    order_T: Tensor
    positions_T: Tensor
    row_of_token_T: Tensor
    starts_B: Tensor
    lengths_B: Tensor
    routes_B: Tensor
    restore_B: Tensor
    bounds: Tensor
    lengths: IntArray
    routes: IntArray
    rotations: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False)

    @classmethod
    def build(
        cls, lengths: Sequence[int], routes: int | Sequence[int], device: torch.device
    ) -> PackingPlan:
        """Plan a batch of rows with these lengths and one route, or one route per row."""
        order_B, lengths_B, routes_B = _sorted_rows(lengths, routes)
        ends_B = np.cumsum(lengths_B)
        given_B = np.asarray(lengths, dtype=np.int64)
        old_starts_B = (np.cumsum(given_B) - given_B)[order_B]
        restore_B = np.argsort(order_B, kind="stable")
        bounds = np.concatenate([[0], ends_B]).astype(np.int32)
        arrays = (old_starts_B, ends_B - lengths_B, lengths_B, routes_B, restore_B, bounds)
        old, starts, sizes, of_row, restore, on_device = send(
            [torch.from_numpy(array) for array in arrays], device
        )
        tokens = int(bounds[-1])
        # A given size spares the host from reading it back.
        rows_T = torch.repeat_interleave(sizes, output_size=tokens)
        positions_T = torch.arange(tokens, device=device) - starts[rows_T]
        return cls(
            order_T=old[rows_T] + positions_T,
            positions_T=positions_T,
            row_of_token_T=rows_T,
            starts_B=starts,
            lengths_B=sizes,
            routes_B=of_row,
            restore_B=restore,
            bounds=on_device,
            lengths=lengths_B,
            routes=routes_B,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def route_slices(self) -> list[tuple[int, slice]]:
        """Each route and its tokens."""
        slices, start = [], 0
        for route in np.unique(self.routes).tolist():
            stop = start + int(self.lengths[self.routes == route].sum())
            slices.append((route, slice(start, stop)))
            start = stop
        return slices

    @cached_property
    def groups(self) -> list[AttentionGroup]:
        """Rows of similar length, for attention that pads."""
        groups, start = [], 0
        for first, last in _group_bounds(self.routes, self.lengths):
            stop = start + int(self.lengths[first:last].sum())
            groups.append(self._group(first, last, slice(start, stop)))
            start = stop
        return groups

    def _group(self, first: int, last: int, tokens: slice) -> AttentionGroup:
        longest = int(self.lengths[last - 1])
        sizes = int(self.routes[first]), tokens.stop - tokens.start, last - first, longest
        if self.lengths[first] == longest:
            return AttentionGroup(*sizes, None, None)
        rows_T = self.row_of_token_T[tokens] - first
        places_L = torch.arange(longest, device=rows_T.device)
        return AttentionGroup(
            *sizes,
            places_T=rows_T * longest + self.positions_T[tokens],
            mask_BL=places_L < self.lengths_B[first:last, None],
        )


def attention_places(lengths: Sequence[int], routes: int | Sequence[int]) -> int:
    """Return the token places, padding included, that padded attention over a batch has."""
    _, lengths_B, routes_B = _sorted_rows(lengths, routes)
    # Sorted by length, so that the last row of a group is its longest.
    bounds = _group_bounds(routes_B, lengths_B)
    return sum((last - first) * int(lengths_B[last - 1]) for first, last in bounds)


def _sorted_rows(
    lengths: Sequence[int], routes: int | Sequence[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the order by route and length, and lengths and routes in it."""
    lengths_B = np.asarray(lengths, dtype=np.int64)
    routes_B = np.broadcast_to(np.asarray(routes, dtype=np.int64), lengths_B.shape)
    order_B = np.lexsort((lengths_B, routes_B))
    return order_B, lengths_B[order_B], routes_B[order_B]


def _group_bounds(routes_B: IntArray, lengths_B: IntArray) -> list[tuple[int, int]]:
    """Return [first, last) row ranges; a group never crosses routes or its size limit."""
    bounds, first = [], 0
    for row in range(1, len(lengths_B) + 1):
        if row < len(lengths_B):
            limit = _GROUP_SPREAD * lengths_B[first] + _GROUP_SLACK
            fits = (row - first + 1) * lengths_B[row] <= max(_GROUP_TOKENS, lengths_B[row])
            if routes_B[row] == routes_B[first] and lengths_B[row] <= limit and fits:
                continue
        bounds.append((first, row))
        first = row
    return bounds if len(lengths_B) else []
