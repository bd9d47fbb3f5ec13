"""Easy negatives: any candidate, or one of the query's field or of another.

Shape legend: C candidates, G groups, F fields, N draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scimult.data.ragged import Ragged
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.sampling import HashArray, hash_rows
from scimult.types import BoolArray, IntArray

# Draws per wanted candidate: some repeat, some are positives, some are of the wrong field.
_DRAWS = 4


@dataclass(frozen=True)
class Random:
    """Candidates drawn by chance, with replacement.

    Parameters
    ----------
    rows_C : IntArray
        All candidates.
    count : int
        How many are wanted; a few more are drawn, for some are repetitions or positives.
    seed : int
        Decides the draws.
    """

    rows_C: IntArray
    count: int
    seed: int

    def candidates(self, groups: Groups) -> Ragged:
        """Return about ``4 * count`` candidates of each group."""
        owners, _, drawn = _draw(groups, np.full(len(groups), len(self.rows_C)), self)
        return Ragged.from_pairs(owners, self.rows_C[drawn], len(groups))


@dataclass(frozen=True)
class SameField:
    """Candidates that share a field with the query (SPECTER2: SciRepEval, section on SPECTER2).

    Each draw takes one field of the query, then one of its papers. Queries without a field
    get none.

    Parameters
    ----------
    fields_of : Ragged
        For every text row its fields, sorted and unique.
    rows_of_field : Ragged
        For every field its candidates.
    count, seed : int
        See ``Random``.
    """

    fields_of: Ragged
    rows_of_field: Ragged
    count: int
    seed: int

    def candidates(self, groups: Groups) -> Ragged:
        """Return about ``4 * count`` candidates of the query's fields."""
        fields = self.fields_of.take(groups.queries_G)
        owners, numbers, drawn = _draw(groups, fields.lengths, self)
        field = fields.values[fields.offsets[owners] + drawn]
        sizes = self.rows_of_field.lengths[field]
        owners, numbers, field = (column[sizes > 0] for column in (owners, numbers, field))
        hashes = hash_rows(self.seed, groups.numbers_G[owners], numbers, field)
        place = _below(self.rows_of_field.lengths[field], hashes)
        rows = self.rows_of_field.values[self.rows_of_field.offsets[field] + place]
        return Ragged.from_pairs(owners, rows, len(groups))


@dataclass(frozen=True)
class OtherField:
    """Candidates that have a field, but none of the query's (SPECTER2).

    Queries without a field get none: nothing says what would be another one.

    Parameters
    ----------
    rows_C : IntArray
        All candidates.
    fields_of : Ragged
        For every text row its fields, sorted and unique.
    count, seed : int
        See ``Random``.
    """

    rows_C: IntArray
    fields_of: Ragged
    count: int
    seed: int

    def candidates(self, groups: Groups) -> Ragged:
        """Return those of about ``4 * count`` draws that are of another field."""
        owners, _, drawn = _draw(groups, np.full(len(groups), len(self.rows_C)), self)
        rows, queries = self.rows_C[drawn], groups.queries_G[owners]
        lengths = self.fields_of.lengths
        other = (lengths[rows] > 0) & (lengths[queries] > 0)
        owners, rows, queries = owners[other], rows[other], queries[other]
        kept = ~_share_a_field(self.fields_of, queries, rows)
        return Ragged.from_pairs(owners[kept], rows[kept], len(groups))


def fields_to_rows(fields_of: Ragged, rows_C: IntArray) -> Ragged:
    """Return for every field its candidates, sorted."""
    fields = fields_of.take(rows_C)
    count = int(fields_of.values.max(initial=-1)) + 1
    return Ragged.from_pairs(fields.values, rows_C[fields.owners], count)


def _share_a_field(fields_of: Ragged, first: IntArray, second: IntArray) -> BoolArray:
    """Return for each pair of rows whether a field is in both lists."""
    mine, theirs = fields_of.take(first), fields_of.take(second)
    span = int(fields_of.values.max(initial=-1)) + 1
    keys = mine.owners * span + mine.values
    common = np.isin(theirs.owners * span + theirs.values, keys)
    shared = np.zeros(len(first), dtype=np.bool_)
    shared[theirs.owners[common]] = True
    return shared


def _draw(
    groups: Groups, sizes_G: IntArray, rule: Random | SameField | OtherField
) -> tuple[IntArray, IntArray, IntArray]:
    """Draw places below ``sizes_G`` for every group whose size is not 0.

    Returns the group of each draw, its number within the group, and the place.
    """
    filled = np.flatnonzero(sizes_G > 0)
    per_group = _DRAWS * rule.count
    owners = np.repeat(filled, per_group)
    numbers = np.tile(np.arange(per_group, dtype=np.int64), len(filled))
    hashes = hash_rows(rule.seed, groups.numbers_G[owners], numbers)
    return owners, numbers, _below(sizes_G[owners], hashes)


def _below(sizes_N: IntArray, hashes_N: HashArray) -> IntArray:
    """Map each hash to a number below its size, which must not be 0."""
    places: IntArray = (hashes_N % sizes_N.astype(np.uint64)).astype(np.int64)
    return places
