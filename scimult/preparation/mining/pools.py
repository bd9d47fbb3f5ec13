"""How the finds of several rules become one pool for each group of a block.

A *rule* proposes candidates, by a plan or by a search. ``BlockMiner`` leaves positives out, lets a
cross-encoder object, samples, and unites.

Shape legend: G groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from scimult.data.pairs import PairFile, RuleBits
from scimult.data.ragged import Ragged, offsets_of
from scimult.preparation.mining.engine import Engine
from scimult.preparation.mining.hashing import ALL_KEYS, key, key_sql
from scimult.preparation.mining.plans import CITED_BY_CITED, sample
from scimult.types import IntArray

GROUPS_PER_PART, GROUPS_PER_FETCH = 1 << 12, 1 << 17


@dataclass(frozen=True)
class Groups:
    """Some groups of a pair file.

    Parameters
    ----------
    queries_G : IntArray
        Query of each group, a row of the text store.
    positives : Ragged
        ``G`` lists of rows.
    """

    queries_G: IntArray
    positives: Ragged

    def __len__(self) -> int:
        return len(self.queries_G)

    @classmethod
    def of(cls, pairs: PairFile) -> Groups:
        """Return all groups of a pair file."""
        return cls(pairs.queries, pairs.positives)

    def part(self, start: int, stop: int) -> Groups:
        """Return the groups from ``start`` to ``stop``."""
        return Groups(self.queries_G[start:stop], self.positives.part(start, stop))

    def parts(self) -> Iterator[Groups]:
        """Return the groups in parts that a search or a model may hold in memory."""
        for start in range(0, len(self), GROUPS_PER_PART):
            yield self.part(start, min(start + GROUPS_PER_PART, len(self)))

    def take(self, places: IntArray) -> Groups:
        """Return the groups at ``places``, in that order."""
        return Groups(self.queries_G[places], self.positives.take(places))


class Search(Protocol):
    """Proposes hard negatives by a search."""

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
    rule : str or Search
        A plan (``plans.py``), or a search.
    count : int
        Most candidates of a group that are kept, chosen by a seeded hash.
    exclude_known : bool
        Leave out all known positives of the query; without it only the query itself and the
        positives of its own group.
    objection : Objection, optional
        Looks at the kept ones; what it takes away is not replaced.
    """

    name: str
    rule: str | Search
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


class BlockMiner:
    """Mines the groups of one pair file, block by block.

    A pool depends on its group, and the group's number, alone: blocks do not matter.

    Parameters
    ----------
    engine : Engine
        Runs plans, and has the tables they read.
    groups : Groups
        All groups of the file.
    table : str
        Their positives, ``(number, query, paper)``.
    known : sequence of str
        SELECTs ``(query, paper)`` of what must not become a negative of a query.
    ingredients : sequence of Ingredient
        Rules; their finds are united.
    limit : int
        Largest pool; a larger one is sampled.
    seed : int
        Decides every sample.
    below : int
        Groups are mined whose queries' keys are below this number (``budget.py``); all by default.
    """

    def __init__(
        self,
        engine: Engine,
        groups: Groups,
        table: str,
        known: Sequence[str],
        ingredients: Sequence[Ingredient],
        *,
        limit: int,
        seed: int,
        below: int = ALL_KEYS,
    ) -> None:
        self._engine, self._groups, self._table = engine, groups, table
        self._known, self._ingredients = known, ingredients
        self._limit, self._seed, self._below = limit, seed, below
        self._bits = np.min_scalar_type((1 << len(ingredients)) - 1)
        self._one_positive = False

    def mine(self, start: int, stop: int) -> Pools:
        """Return the pools of the groups from ``start`` to ``stop``."""
        if not self._ingredients or start == stop:
            return self._nothing(stop - start)
        self._begin(start, stop)
        finds = [self._finds(place, start, stop) for place in range(len(self._ingredients))]
        counts = [int(self._engine.fetch(f"SELECT count(*) AS n FROM {f}")["n"][0]) for f in finds]
        by_rule = {i.name: n for i, n in zip(self._ingredients, counts, strict=True)}
        if not any(counts):
            return self._nothing(stop - start)
        select = self._united({place: finds[place] for place in np.flatnonzero(counts).tolist()})
        step = GROUPS_PER_FETCH * ALL_KEYS // max(self._below, 1)
        firsts = range(start, stop, step)
        parts = [self._sorted(select, at, min(at + step, stop)) for at in firsts]
        negatives, found_by = zip(*parts, strict=True)
        return Pools(Ragged.concatenate(negatives), np.concatenate(found_by), by_rule)

    def _nothing(self, groups: int) -> Pools:
        none = {ingredient.name: 0 for ingredient in self._ingredients}
        return Pools(Ragged.empty(groups), np.empty(0, self._bits), none)

    def _sorted(self, select: str, start: int, stop: int) -> tuple[Ragged, RuleBits]:
        """Return the pools of some groups, and which rules found what is in them."""
        rows = self._engine.fetch(
            f"SELECT * FROM ({select}) WHERE number >= {start} AND number < {stop}"
        )
        # numpy sorts one number for each row several times faster than an engine its columns.
        width, bits = int(rows["paper"].max(initial=0)).bit_length(), len(self._ingredients)
        assert (stop - start) << (width + bits) < 1 << 63, "combined key would overflow"
        keys = rows["number"] - start
        lengths = np.bincount(keys, minlength=stop - start)
        for column, shift in (("paper", width), ("found_by", bits)):
            keys <<= shift
            keys |= rows[column]
        keys.sort()
        found_by = (keys & ((1 << bits) - 1)).astype(self._bits)
        keys >>= bits
        keys &= (1 << width) - 1
        return Ragged(keys, offsets_of(lengths)), found_by

    def _begin(self, start: int, stop: int) -> None:
        """Make the tables of a block."""
        condition = f"{key_sql(self._seed, 'query')} < {self._below}"
        of_block = f"FROM {self._table} WHERE number >= {start} AND number < {stop} AND {condition}"
        self._engine.create("own", f"SELECT number, query, paper {of_block}")
        self._engine.create("asked", "SELECT DISTINCT number, query FROM own")
        sizes = "SELECT (SELECT count(*) FROM own) AS own, (SELECT count(*) FROM asked) AS asked"
        size = self._engine.fetch(sizes)
        self._one_positive = bool(size["own"][0] == size["asked"][0])
        queries_G = self._groups.queries_G[start:stop]
        within = f"query >= {queries_G.min()} AND query <= {queries_G.max()}"
        known = [f"SELECT * FROM ({select}) WHERE {within}" for select in self._known]
        known.append("SELECT query, paper FROM own")
        self._engine.create("known", " UNION ALL ".join(known))

    def _finds(self, place: int, start: int, stop: int) -> str:
        """Make the table ``(number, paper)`` of what one rule adds to the pools; return its name.

        Each rule samples with a seed of its own: the last sample must favour none.
        """
        ingredient, name = self._ingredients[place], f"finds_{place}"
        numbers = np.arange(start, stop, dtype=np.int64)
        numbers = numbers[key(self._seed, self._groups.queries_G[start:stop]) < self._below]
        groups = self._groups.take(numbers)
        plan = ingredient.rule
        if not isinstance(plan, str):
            lists = Ragged.concatenate([plan.candidates(part) for part in groups.parts()])
            self._engine.load("searched", [_rows(lists, numbers, groups.queries_G)])
            plan = "SELECT number, query, paper FROM searched"
        table, column = ("known", "query") if ingredient.exclude_known else ("own", "number")
        candidates = f"candidates_{place}"
        # What a single positive cites, it cites once.
        distinct = "" if plan == CITED_BY_CITED and self._one_positive else "DISTINCT"
        self._engine.create(
            candidates,
            f"""
            SELECT {distinct} found.number, found.paper FROM ({plan}) found
            ANTI JOIN {table} positives
                ON positives.{column} = found.{column} AND positives.paper = found.paper
            WHERE found.paper <> found.query""",
        )
        most = f"SELECT count(*) AS n FROM {candidates} GROUP BY number ORDER BY n DESC LIMIT 1"
        if self._engine.fetch(most)["n"].max(initial=0) <= ingredient.count:
            name = candidates
        else:
            seed = self._seed + place + 1
            select = sample(candidates, "number", "paper", ingredient.count, seed)
            self._engine.create(name, select)
        if ingredient.objection is not None:
            rows = self._engine.fetch(f"SELECT number, paper FROM {name}")
            places = np.searchsorted(numbers, rows["number"])
            pools = Ragged.from_pairs(places, rows["paper"], len(groups))
            firsts = range(0, len(groups), GROUPS_PER_PART)
            parts = [
                ingredient.objection.keep(part, pools.part(first, first + len(part)))
                for first, part in zip(firsts, groups.parts(), strict=True)
            ]
            left = _rows(Ragged.concatenate(parts), numbers, groups.queries_G)
            name = f"left_{place}"
            self._engine.load(name, [left])
        return name

    def _united(self, finds: Mapping[int, str]) -> str:
        """Return the SELECT ``(number, paper, found_by)`` of pools within the limit.

        ``finds`` names the tables of the rules that found anything, by the rule's place.
        """
        each = " UNION ALL ".join(
            f"SELECT number, paper, CAST({1 << place} AS BIGINT) AS found_by FROM {name}"
            for place, name in finds.items()
        )
        most = sum(self._ingredients[place].count for place in finds)
        if len(finds) == 1 and most <= self._limit:
            return each
        united = f"""
            SELECT number, paper, bit_or(found_by) AS found_by
            FROM ({each}) GROUP BY number, paper"""
        if most <= self._limit:
            return united
        self._engine.create("united", united)
        self._engine.create("chosen", sample("united", "number", "paper", self._limit, self._seed))
        return """
            SELECT united.number, united.paper, united.found_by FROM united JOIN chosen
            ON chosen.number = united.number AND chosen.paper = united.paper"""


def _rows(lists: Ragged, numbers_G: IntArray, queries_G: IntArray) -> pa.Table:
    """Return the lists of groups as rows of a table."""
    owners = lists.owners
    columns = {"number": numbers_G[owners], "query": queries_G[owners], "paper": lists.values}
    return pa.table(columns)
