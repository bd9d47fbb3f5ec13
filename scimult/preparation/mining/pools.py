"""What a rule for hard negatives is, and how the finds of several rules become one pool.

A *rule* proposes candidates for groups of a pair file; it need not know which of them are
positives. ``mine_pools`` leaves those out, lets a cross-encoder object, samples, and unites.

Shape legend: G groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from scimult.data.pairs import PairFile, RuleBits
from scimult.data.ragged import Ragged
from scimult.preparation.mining.sampling import Membership, concatenate, sample_lists
from scimult.progress import progress
from scimult.types import IntArray

GROUPS_PER_CHUNK = 1 << 12


@dataclass(frozen=True)
class Groups:
    """Some groups of a pair file.

    Parameters
    ----------
    numbers_G : IntArray
        Place of each group in its file: what a seeded choice may depend on.
    queries_G : IntArray
        Query of each group, a row of the text store.
    positives : Ragged
        ``G`` lists of rows.
    """

    numbers_G: IntArray
    queries_G: IntArray
    positives: Ragged

    def __len__(self) -> int:
        return len(self.queries_G)

    @classmethod
    def of(cls, pairs: PairFile) -> Groups:
        """Return all groups of a pair file."""
        return cls(np.arange(len(pairs), dtype=np.int64), pairs.queries, pairs.positives)

    def take(self, places: IntArray) -> Groups:
        """Return the groups at ``places``, in that order."""
        return Groups(self.numbers_G[places], self.queries_G[places], self.positives.take(places))


class Rule(Protocol):
    """Proposes hard negatives."""

    def candidates(self, groups: Groups) -> Ragged:
        """Return ``G`` sorted lists of rows without repetition; positives may be among them."""
        ...


class Objection(Protocol):
    """Takes candidates away that look like positives."""

    def keep(self, groups: Groups, pools: Ragged) -> Ragged:
        """Return the candidates of each group to which there is no objection, in order."""
        ...


@dataclass(frozen=True)
class Ingredient:
    """A rule and what is taken of its finds.

    Parameters
    ----------
    name : str
        What reports call it.
    rule : Rule
        Proposes candidates.
    count : int
        Most candidates of a group that are kept, chosen by a seeded hash.
    exclude_known : bool
        Leave out all known positives of the query; without it only the query itself and the
        positives of its own group.
    objection : Objection, optional
        Looks at the kept ones; what it takes away is not replaced.
    """

    name: str
    rule: Rule
    count: int
    exclude_known: bool = True
    objection: Objection | None = None


@dataclass(frozen=True)
class Pools:
    """What mining found for ``G`` groups.

    Parameters
    ----------
    negatives : Ragged
        ``G`` sorted lists of rows; empty where no rule found anything.
    found_by : RuleBits
        For each of ``negatives.values``: bit ``i`` is set if the rule at place ``i`` gave it.
    found : dict
        Candidates that each rule contributed, by its name, before they were united.
    """

    negatives: Ragged
    found_by: RuleBits
    found: dict[str, int]


def mine_pools(
    groups: Groups,
    ingredients: Sequence[Ingredient],
    is_known: Membership,
    *,
    limit: int,
    seed: int,
    what: str = "mining",
) -> Pools:
    """Return the pool of hard negatives of every group.

    Groups are worked on in chunks, which bounds memory. A pool depends on its group and the
    group's number alone, so neither chunks nor the other groups matter.

    Parameters
    ----------
    groups : Groups
        The ``G`` groups.
    ingredients : sequence of Ingredient
        Rules; their finds are united.
    is_known : Membership
        Of the known positives of every text row.
    limit : int
        Largest pool; a larger one is sampled.
    seed : int
        Decides every sample.
    what : str
        What the progress bar is called.
    """
    found: Counter[str] = Counter({ingredient.name: 0 for ingredient in ingredients})
    bits = np.min_scalar_type((1 << len(ingredients)) - 1)
    if not ingredients:
        return Pools(Ragged.empty(len(groups)), np.empty(0, bits), {})
    starts = range(0, len(groups), GROUPS_PER_CHUNK)
    parts, found_by = [], [np.empty(0, bits)]
    for start in progress(starts, what, unit="chunk"):
        stop = min(start + GROUPS_PER_CHUNK, len(groups))
        chunk = groups.take(np.arange(start, stop, dtype=np.int64))
        own = Membership(_sorted_lists(chunk.positives))
        finds = [
            _finds(chunk, own, is_known, ingredient, seed + place + 1)
            for place, ingredient in enumerate(ingredients)
        ]
        for ingredient, kept in zip(ingredients, finds, strict=True):
            found[ingredient.name] += len(kept.values)
        owners, values = (
            np.concatenate([getattr(kept, name) for kept in finds]) for name in ("owners", "values")
        )
        united = Ragged.from_pairs(owners, values, len(chunk))
        pools = sample_lists(united, limit, seed, owners=chunk.numbers_G)
        parts.append(pools)
        found_by.append(_bits(pools, finds, bits))
    return Pools(concatenate(parts), np.concatenate(found_by), dict(found))


def _finds(
    groups: Groups, own: Membership, is_known: Membership, ingredient: Ingredient, seed: int
) -> Ragged:
    """Return what one rule adds to the pools of some groups.

    Each rule samples with a seed of its own: the last sample must favour none.
    """
    kept = _without_positives(
        ingredient.rule.candidates(groups),
        groups,
        own,
        is_known if ingredient.exclude_known else None,
    )
    kept = sample_lists(kept, ingredient.count, seed, owners=groups.numbers_G)
    return kept if ingredient.objection is None else ingredient.objection.keep(groups, kept)


def _bits(pools: Ragged, finds: Sequence[Ragged], dtype: np.dtype[Any]) -> RuleBits:
    """Return which rules gave each candidate."""
    bits = np.zeros(len(pools.values), dtype)
    for place, kept in enumerate(finds):
        given = Membership(kept)(pools.owners, pools.values)
        bits |= given.astype(dtype) << dtype.type(place)
    return bits


def _without_positives(
    pools: Ragged, groups: Groups, own: Membership, is_known: Membership | None
) -> Ragged:
    owners, values = pools.owners, pools.values
    queries = groups.queries_G[owners]
    kept = (values != queries) & ~own(owners, values)
    if is_known is not None:
        kept &= ~is_known(queries, values)
    return Ragged.from_pairs(owners[kept], values[kept], len(pools))


def _sorted_lists(lists: Ragged) -> Ragged:
    return Ragged.from_pairs(lists.owners, lists.values, len(lists))
