"""Packed batches: the tokens of all rows concatenated, without padding.

Shape legend: B rows, L tokens of the longest row of a group, T tokens of all rows, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scimult.hardware import send
from scimult.models.short_attention import Tables, tables
from scimult.types import IntArray, TokenIds

# Attention pads a group of rows to its longest; rows this much longer than the group's shortest
# start a new group. Between 1.1 and 1.5 speed hardly changes.
_GROUP_SPREAD = 1.25
_GROUP_SLACK = 8
_GROUP_TOKENS = 8192
# Without padding, a CPU's group has this many scores for each head: they stay in its cache.
_GROUP_SCORES = 1 << 16


@dataclass(frozen=True)
class PackedTexts:
    """Concatenated token ids of B rows, with the row lengths on the host.

    Plans are cached for further passes.
    """

    tokens_T: Tensor
    lengths: list[int]
    _cache: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device | str) -> PackedTexts:
        """Return a copy of the rows, which are on the host, on ``device``."""
        (tokens_T,) = send([self.tokens_T], device)
        return PackedTexts(tokens_T, self.lengths)

    def plan(self, routes: int | Sequence[int]) -> PackingPlan:
        """Return how the rows run through the blocks, with one route or one per row."""
        key = routes if isinstance(routes, int) else tuple(routes)
        if key not in self._cache:
            self._cache[key] = PackingPlan.build(self.lengths, routes, self.tokens_T.device)
        plan: PackingPlan = self._cache[key]
        return plan

    def with_gap(self, position: int) -> PackedTexts:
        """Return the rows with one more token, 0, at ``position`` of each: see `open_gap`."""
        if ("gap", position) not in self._cache:
            self._cache["gap", position] = open_gap(self, position)
        texts: PackedTexts = self._cache["gap", position]
        return texts

    def __len__(self) -> int:
        return len(self.lengths)


def pack(rows: Sequence[TokenIds]) -> PackedTexts:
    """Concatenate token id arrays into a packed batch."""
    tokens = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return PackedTexts(torch.from_numpy(tokens.astype(np.int64)), [len(row) for row in rows])


def open_gap(texts: PackedTexts, position: int) -> PackedTexts:
    """Insert one token, 0, at ``position`` of every row, each of at least that many tokens."""
    plan = texts.plan(0)
    # The plan sorts rows by length; the texts keep their order.
    rows_T = plan.restore_B.argsort()[plan.row_of_token_T]
    moved_T = plan.order_T + rows_T + (plan.positions_T >= position)
    tokens_T = texts.tokens_T.new_zeros(len(texts.tokens_T) + len(texts))
    tokens_T.index_copy_(0, moved_T, texts.tokens_T[plan.order_T])
    return PackedTexts(tokens_T, [length + 1 for length in texts.lengths])


@dataclass(frozen=True)
class AttentionGroup:
    """Rows of one route and similar length that attention handles as one padded block.

    ``slots_T`` is the index of every packed token in the flattened block; ``mask_BL`` is true
    on real tokens. Both are ``None`` when no row is padded.
    """

    route: int
    num_tokens: int
    rows: int
    longest: int
    slots_T: Tensor | None
    mask_BL: Tensor | None


@dataclass(frozen=True)
class PackingPlan:
    """How one packed batch runs through every block; computed once per batch.

    Rows are sorted by (route, length), so that each route is one slice of the tokens. ``bounds``
    are the starts of the rows and the end of the last one, int32. ``rotations`` caches cosine
    and sine of the tokens' rotary angles by base (`modern.rotations`). ``lengths`` and
    ``routes`` of the sorted rows are on the host; per-token tensors are made on the device.
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
        unsorted_B = np.asarray(lengths, dtype=np.int64)
        old_starts_B = (np.cumsum(unsorted_B) - unsorted_B)[order_B]
        restore_B = np.argsort(order_B, kind="stable")
        bounds = np.concatenate([[0], ends_B]).astype(np.int32)
        arrays = (old_starts_B, ends_B - lengths_B, lengths_B, routes_B, restore_B, bounds)
        old, starts, sizes, route_of_row, restore, device_bounds = send(
            [torch.from_numpy(array) for array in arrays], device
        )
        tokens = int(bounds[-1])
        # A known size spares the host from reading it back.
        rows_T = torch.repeat_interleave(sizes, output_size=tokens)
        positions_T = torch.arange(tokens, device=device) - starts[rows_T]
        return cls(
            order_T=old[rows_T] + positions_T,
            positions_T=positions_T,
            row_of_token_T=rows_T,
            starts_B=starts,
            lengths_B=sizes,
            routes_B=route_of_row,
            restore_B=restore,
            bounds=device_bounds,
            lengths=lengths_B,
            routes=routes_B,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def route_slices(self) -> list[tuple[int, slice]]:
        """Each route and its slice of the tokens."""
        slices, start = [], 0
        for route in np.unique(self.routes).tolist():
            stop = start + int(self.lengths[self.routes == route].sum())
            slices.append((route, slice(start, stop)))
            start = stop
        return slices

    @cached_property
    def row_slices(self) -> list[tuple[int, slice]]:
        """Each route and its slice of the rows."""
        routes, firsts = np.unique(self.routes, return_index=True)
        bounds = [*firsts.tolist(), len(self.routes)]
        pairs = itertools.pairwise(bounds)
        return [(route, slice(*pair)) for route, pair in zip(routes.tolist(), pairs, strict=True)]

    def tokens_at(self, position: int) -> Tensor:
        """Return the token at a position of each row, shape ``(B,)``.

        Negative positions count from the end; positions beyond a row take its nearest token.
        """
        if position == 0:
            return self.starts_B
        if position > 0:
            return self.starts_B + (self.lengths_B - 1).clamp(max=position)
        return self.starts_B + (self.lengths_B + position).clamp(min=0)

    @cached_property
    def groups(self) -> list[AttentionGroup]:
        """Groups of rows of similar length, for padded attention."""
        groups, start = [], 0
        for first, last in _group_bounds(self.routes, self.lengths):
            stop = start + int(self.lengths[first:last].sum())
            groups.append(self._group(first, last, slice(start, stop)))
            start = stop
        return groups

    @cached_property
    def unpadded_groups(self) -> list[AttentionGroup]:
        """Groups of rows of equal length, which need neither padding nor a mask.

        Their numbers of rows are powers of two: a CPU's products of bfloat16 take half a
        millisecond more at a new shape.
        """
        groups, first = [], 0
        while first < len(self.lengths):
            longest, route = int(self.lengths[first]), int(self.routes[first])
            most = max(1, _GROUP_SCORES // longest**2)
            same = self.lengths[first : first + most] == longest
            same &= self.routes[first : first + most] == route
            equal = int(same.argmin()) or len(same)
            rows = 1 << (equal.bit_length() - 1)
            groups.append(AttentionGroup(route, rows * longest, rows, longest, None, None))
            first += rows
        return groups

    @cached_property
    def rows_by_length(self) -> Tables:
        """The rows by classes of length, for attention over short rows."""
        return tables(self.lengths, self.bounds.device)

    def _group(self, first: int, last: int, tokens: slice) -> AttentionGroup:
        longest = int(self.lengths[last - 1])
        sizes = int(self.routes[first]), tokens.stop - tokens.start, last - first, longest
        if self.lengths[first] == longest:
            return AttentionGroup(*sizes, None, None)
        rows_T = self.row_of_token_T[tokens] - first
        positions_L = torch.arange(longest, device=rows_T.device)
        return AttentionGroup(
            *sizes,
            slots_T=rows_T * longest + self.positions_T[tokens],
            mask_BL=positions_L < self.lengths_B[first:last, None],
        )


def attention_slots(lengths: Sequence[int], routes: int | Sequence[int]) -> int:
    """Return the token slots, padding included, of padded attention over a batch."""
    _, lengths_B, routes_B = _sorted_rows(lengths, routes)
    # Rows are sorted by length: the last of a group is its longest.
    bounds = _group_bounds(routes_B, lengths_B)
    return sum((last - first) * int(lengths_B[last - 1]) for first, last in bounds)


def _sorted_rows(
    lengths: Sequence[int], routes: int | Sequence[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the order by route and length, and the lengths and routes in that order."""
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
