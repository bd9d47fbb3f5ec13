"""From (query, positive) pairs to the groups of pair files: split, down-sample, group."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from scimult.data.ragged import Ragged, rank_in_runs
from scimult.types import BoolArray, IntArray


def dev_mask(identifiers: Iterable[str], fraction: float, seed: int) -> BoolArray:
    """Return which queries belong to the dev split.

    The choice hangs on the seed and the query's id alone: adding sources or papers never
    moves a query, and a paper that two sources query is in the same split of both.
    """
    limit = int(fraction * 2**64)
    draws = (
        hashlib.blake2b(f"{seed}:{identifier}".encode(), digest_size=8).digest()
        for identifier in identifiers
    )
    return np.array([int.from_bytes(draw, "big") < limit for draw in draws], dtype=np.bool_)


def sample_per_value(values: IntArray, limit: int, seed: int) -> BoolArray:
    """Choose at most ``limit`` positions of each value, uniformly (SciMult, appendix A.1).

    Parameters
    ----------
    values : IntArray
        For instance the label of each (paper, label) pair.
    limit : int
        Largest number of positions to keep per value.
    seed : int
        Decides which.

    Returns
    -------
    BoolArray
        True where the position is kept.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    mask = np.zeros(len(values), dtype=np.bool_)
    mask[order] = rank_in_runs(values[order]) < limit
    return mask


def group_by_query(
    queries: IntArray, positives: IntArray, kept: BoolArray
) -> tuple[IntArray, Ragged, Ragged]:
    """Make one group per query that keeps a positive.

    Returns
    -------
    queries : IntArray
        Query of each group, ascending.
    positives : Ragged
        The kept ones, ascending.
    unsampled : Ragged
        The others of the same query.
    """
    unique, group = np.unique(queries, return_inverse=True)
    group = group.astype(np.int64)
    inside = Ragged.from_pairs(group[kept], positives[kept], len(unique))
    outside = Ragged.from_pairs(group[~kept], positives[~kept], len(unique))
    filled = np.flatnonzero(inside.lengths > 0)
    return unique[filled], inside.take(filled), outside.take(filled)
