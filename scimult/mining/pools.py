"""What a rule for hard negatives is, and how the finds of several rules become one pool.

A *rule* proposes candidates for groups of a pair file; it need not know which of them are
positives. ``mine_pools`` leaves those out, lets a cross-encoder object, samples, and unites.

Shape legend: G groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.mining.sampling import Membership, concatenate, sample_lists
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


def mine_pools(
    pairs: PairFile,
    ingredients: Sequence[Ingredient],
    known: Ragged,
    *,
    limit: int,
    seed: int,
) -> tuple[Ragged, dict[str, int]]:
    """Return the pool of hard negatives of every group, and how many each rule gave.

    Groups are worked on in chunks, which bounds memory; the result does not depend on them.

    Parameters
    ----------
    pairs : PairFile
        The ``G`` groups.
    ingredients : sequence of Ingredient
        Rules; their finds are united.
    known : Ragged
        For every text row its known positives, sorted and unique.
    limit : int
        Largest pool; a larger one is sampled.
    seed : int
        Decides every sample.

    Returns
    -------
    pools : Ragged
        ``G`` sorted lists; empty where no rule found anything.
    found : dict
        Candidates that each rule contributed, before they were united.
    """
    found: Counter[str] = Counter({ingredient.name: 0 for ingredient in ingredients})
    if not ingredients:
        return Ragged.empty(len(pairs)), dict(found)
    is_known = Membership(known)
    whole = Groups(np.arange(len(pairs), dtype=np.int64), pairs.queries, pairs.positives)
    starts = range(0, len(pairs), GROUPS_PER_CHUNK)
    parts = []
    for start in progress(starts, pairs.name, unit="chunk"):
        numbers = np.arange(start, min(start + GROUPS_PER_CHUNK, len(pairs)), dtype=np.int64)
        groups = whole.take(numbers)
        own = Membership(_sorted_lists(groups.positives))
        owners, values = [], []
        for place, ingredient in enumerate(ingredients):
            kept = _without_positives(
                ingredient.rule.candidates(groups),
                groups,
                own,
                is_known if ingredient.exclude_known else None,
            )
            # Each rule samples by hashes of its own: the last sample must favour none.
            kept = sample_lists(kept, ingredient.count, seed + place + 1, owners=numbers)
            if ingredient.objection is not None:
                kept = ingredient.objection.keep(groups, kept)
            found[ingredient.name] += len(kept.values)
            owners.append(kept.owners)
            values.append(kept.values)
        united = Ragged.from_pairs(np.concatenate(owners), np.concatenate(values), len(groups))
        parts.append(sample_lists(united, limit, seed, owners=numbers))
    return concatenate(parts), dict(found)


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
