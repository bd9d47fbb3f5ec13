"""Choose the dev split so that nothing the dev pairs test was trained on.

Shape legend: N texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from scimult.data.pairs import Split
from scimult.data.text_store import TextStore
from scimult.preparation.collected import RawPairs
from scimult.preparation.hygiene.config import SplitConfig
from scimult.preparation.hygiene.normal_forms import hash64
from scimult.preparation.metadata import NONE
from scimult.preparation.pair_columns import Columns
from scimult.types import BoolArray, IntArray

_IDS_PER_CHUNK = 1 << 16


def dev_texts(
    parts: Sequence[RawPairs],
    store: TextStore,
    years_N: IntArray,
    config: SplitConfig,
    fraction: float,
    seed: int,
    with_targets: Sequence[IntArray] = (),
) -> BoolArray:
    """Return which papers and queries belong to the dev split, shape ``(N,)``; labels never do.

    The draw of a ``fraction`` of the texts (of components, for ``component``) depends only on seed
    and id, so adding texts moves none. Papers without a year (-1) are in the train split. Papers
    ``with_targets`` need no pair.
    """
    count = len(store)
    dev_N = np.zeros(count, dtype=np.bool_)
    if config.dev_from_year is not None:
        dev_N[:] = (years_N != NONE) & (years_N >= config.dev_from_year)
        for part in parts:
            if part.part == "queries":
                dev_N[part.queries[dev_N[part.positives]]] = True
        return dev_N
    used = _used_texts(parts, with_targets, count)
    if config.by == "component":
        return _dev_components(parts, store, used, fraction, seed)
    dev_N[used] = _drawn(store, used, fraction, seed)
    return dev_N


def split_masks(
    parts: Sequence[RawPairs], dev_N: BoolArray, config: SplitConfig
) -> list[dict[Split, BoolArray]]:
    """Return masks of each part's pairs in ``train`` and in ``dev``.

    A pair belongs to dev if its query does. Training pairs with a dev text on the other side are in
    neither split; if the split is by query, only those that are a dev pair the other way round.
    """
    count, tested = len(dev_N), np.empty(0, np.int64)
    if config.by == "query":
        dev = (_masked(part, dev_N[part.queries]) for part in parts)
        tested = np.concatenate([tested, *(second * count + first for first, second in dev)])
    masks: list[dict[Split, BoolArray]] = []
    for part in parts:
        in_dev = dev_N[part.queries]
        barred = ~in_dev & dev_N[part.positives]
        if config.by == "query":
            first, second = _masked(part, barred)
            barred[barred] = np.isin(first * count + second, tested)
        masks.append({"train": ~in_dev & ~barred, "dev": in_dev})
    return masks


def _masked(part: RawPairs, mask_P: BoolArray) -> Columns:
    return part.queries[mask_P], part.positives[mask_P]


def dev_mask(identifiers: Iterable[str], fraction: float, seed: int) -> BoolArray:
    """Return which queries belong to the dev split.

    The choice depends only on the seed and the query's id: adding sources or papers never
    moves a query, and a query of two sources is in the same split of both.
    """
    limit = int(fraction * 2**64)
    draws = (hash64(f"{seed}:{identifier}") for identifier in identifiers)
    return np.fromiter((draw < limit for draw in draws), dtype=np.bool_)


def _used_texts(
    parts: Sequence[RawPairs], with_targets: Sequence[IntArray], count: int
) -> IntArray:
    """Return the rows of papers and queries with a pair or target, ascending."""
    used = np.zeros(count, dtype=np.bool_)
    for part in parts:
        used[part.queries] = True
        if part.part != "labels":
            used[part.positives] = True
    for rows in with_targets:
        used[rows] = True
    return np.flatnonzero(used)


def _drawn(store: TextStore, rows: IntArray, fraction: float, seed: int) -> BoolArray:
    starts = range(0, len(rows), _IDS_PER_CHUNK)
    chunks = (store.ids_at(rows[start : start + _IDS_PER_CHUNK]) for start in starts)
    return dev_mask(chain.from_iterable(chunks), fraction, seed)


def _dev_components(
    parts: Sequence[RawPairs], store: TextStore, used: IntArray, fraction: float, seed: int
) -> BoolArray:
    """Draw whole components; one with more than ``fraction`` of the texts stays in train."""
    count = len(store)
    linked = [part for part in parts if part.part != "labels"]
    first = np.concatenate([np.empty(0, np.int64), *(part.queries for part in linked)])
    second = np.concatenate([np.empty(0, np.int64), *(part.positives for part in linked)])
    ones = np.ones(len(first), dtype=np.int8)
    graph = coo_array((ones, (first, second)), shape=(count, count))
    component = connected_components(graph, directed=False)[1][used]
    _, start, size = np.unique(component, return_index=True, return_counts=True)
    # A component is drawn by the id of its first text, since numbers change as data is added.
    is_dev = _drawn(store, used[start], fraction, seed) & (size <= fraction * len(used))
    dev_N = np.zeros(count, dtype=np.bool_)
    dev_N[used] = is_dev[np.searchsorted(np.unique(component), component)]
    return dev_N
