"""Merge the candidates of several rules into one pool of hard negatives per group.

A *rule* proposes candidates, by a plan or by a search. ``BlockMiner`` leaves out positives,
samples, applies filters, and merges.

Shape legend: G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

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
    """Some groups of a pair file: their queries and positives, as rows of the text store."""

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
        """Yield the groups in parts small enough for a search or a model."""
        for start in range(0, len(self), GROUPS_PER_PART):
            yield self.part(start, min(start + GROUPS_PER_PART, len(self)))

    def take(self, indices: IntArray) -> Groups:
        """Return the groups at ``indices``, in that order."""
        return Groups(self.queries_G[indices], self.positives.take(indices))


Search = Callable[[Groups], Ragged]
"""Proposes ``G`` sorted lists of distinct rows; positives may be among them."""
Filter = Callable[[Groups, Ragged], Ragged]
"""Returns the candidates of each group that do not look like positives, in order."""


@dataclass(frozen=True)
class RuleSpec:
    """A rule and how its candidates are selected.

    ``rule`` is a plan (``plans.py``) or a search. ``count`` candidates are kept per group, chosen
    by a seeded hash. ``exclude_known`` leaves out all known positives of the query; otherwise only
    the query itself and the positives of the group. The ``filter`` is applied to the kept
    candidates; those it removes are not replaced.
    """

    name: str
    rule: str | Search
    count: int
    exclude_known: bool = True
    filter: Filter | None = None


@dataclass(frozen=True)
class Pools:
    """Hard negatives of ``G`` groups: sorted lists, empty where no rule has a candidate.

    Bit ``i`` of ``found_by`` is set, for each of ``negatives.values``, if rule ``i`` gave it.
    ``counts`` counts the candidates from each rule, by name, before merging.
    """

    negatives: Ragged
    found_by: RuleBits
    counts: dict[str, int]


@dataclass
class BlockMiner:
    """Mines the groups of one pair file, block by block.

    A pool depends only on its group and the group's number, not on blocks. ``table`` has the
    groups' positives, ``(number, query, paper)``; ``known`` are SELECTs ``(query, paper)`` of
    papers that must not become negatives of a query. Pools above the ``limit`` are sampled. Only
    groups whose query's key is ``below`` a number are mined (``budget.py``).
    """

    engine: Engine
    groups: Groups
    table: str
    known: Sequence[str]
    rules: Sequence[RuleSpec]
    _: KW_ONLY
    limit: int
    seed: int
    below: int = ALL_KEYS

    def __post_init__(self) -> None:
        self._bits = np.min_scalar_type((1 << len(self.rules)) - 1)
        self._one_positive = False

    def mine(self, start: int, stop: int) -> Pools:
        """Return the pools of the groups from ``start`` to ``stop``."""
        if not self.rules or start == stop:
            return self._empty(stop - start)
        self._begin(start, stop)
        tables = [self._candidates(index, start, stop) for index in range(len(self.rules))]
        counts = [int(self.engine.fetch(f"SELECT count(*) AS n FROM {t}")["n"][0]) for t in tables]
        if not any(counts):
            return self._empty(stop - start)
        select = self._merged({index: tables[index] for index in np.flatnonzero(counts).tolist()})
        step = GROUPS_PER_FETCH * ALL_KEYS // max(self.below, 1)
        parts = [
            self._fetched(select, first, min(first + step, stop))
            for first in range(start, stop, step)
        ]
        negatives, found_by = zip(*parts, strict=True)
        counts_by_rule = {rule.name: count for rule, count in zip(self.rules, counts, strict=True)}
        return Pools(Ragged.concatenate(negatives), np.concatenate(found_by), counts_by_rule)

    def _empty(self, groups: int) -> Pools:
        counts = {rule.name: 0 for rule in self.rules}
        return Pools(Ragged.empty(groups), np.empty(0, self._bits), counts)

    def _fetched(self, select: str, start: int, stop: int) -> tuple[Ragged, RuleBits]:
        """Return the sorted pools of some groups, and which rules gave each negative."""
        rows = self.engine.fetch(
            f"SELECT * FROM ({select}) WHERE number >= {start} AND number < {stop}"
        )
        # numpy sorts combined keys several times faster than an engine sorts columns.
        width, bits = int(rows["paper"].max(initial=0)).bit_length(), len(self.rules)
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
        """Create the tables of a block."""
        condition = f"{key_sql(self.seed, 'query')} < {self.below}"
        of_block = f"FROM {self.table} WHERE number >= {start} AND number < {stop} AND {condition}"
        self.engine.create("own", f"SELECT number, query, paper {of_block}")
        self.engine.create("asked", "SELECT DISTINCT number, query FROM own")
        sizes = "SELECT (SELECT count(*) FROM own) AS own, (SELECT count(*) FROM asked) AS asked"
        size = self.engine.fetch(sizes)
        self._one_positive = bool(size["own"][0] == size["asked"][0])
        queries_G = self.groups.queries_G[start:stop]
        within = f"query >= {queries_G.min()} AND query <= {queries_G.max()}"
        known = [f"SELECT * FROM ({select}) WHERE {within}" for select in self.known]
        known.append("SELECT query, paper FROM own")
        self.engine.create("known", " UNION ALL ".join(known))

    def _candidates(self, index: int, start: int, stop: int) -> str:
        """Create the table ``(number, paper)`` of one rule's candidates; return its name.

        Each rule samples with its own seed: the last sample must not favour any rule.
        """
        rule, name = self.rules[index], f"candidates_{index}"
        numbers = np.arange(start, stop, dtype=np.int64)
        numbers = numbers[key(self.seed, self.groups.queries_G[start:stop]) < self.below]
        groups = self.groups.take(numbers)
        plan = rule.rule
        if not isinstance(plan, str):
            lists = Ragged.concatenate([plan(part) for part in groups.parts()])
            self.engine.load("searched", [_rows(lists, numbers, groups.queries_G)])
            plan = "SELECT number, query, paper FROM searched"
        table, column = ("known", "query") if rule.exclude_known else ("own", "number")
        # A single positive cites each paper once.
        distinct = "" if plan == CITED_BY_CITED and self._one_positive else "DISTINCT"
        self.engine.create(
            name,
            f"""
            SELECT {distinct} found.number, found.paper FROM ({plan}) found
            ANTI JOIN {table} positives
                ON positives.{column} = found.{column} AND positives.paper = found.paper
            WHERE found.paper <> found.query""",
        )
        most = f"SELECT count(*) AS n FROM {name} GROUP BY number ORDER BY n DESC LIMIT 1"
        if self.engine.fetch(most)["n"].max(initial=0) > rule.count:
            select = sample(name, "number", "paper", rule.count, self.seed + index + 1)
            name = f"sampled_{index}"
            self.engine.create(name, select)
        if rule.filter is not None:
            rows = self.engine.fetch(f"SELECT number, paper FROM {name}")
            owners = np.searchsorted(numbers, rows["number"])
            pools = Ragged.from_pairs(owners, rows["paper"], len(groups))
            firsts = range(0, len(groups), GROUPS_PER_PART)
            parts = [
                rule.filter(part, pools.part(first, first + len(part)))
                for first, part in zip(firsts, groups.parts(), strict=True)
            ]
            name = f"filtered_{index}"
            filtered = Ragged.concatenate(parts)
            self.engine.load(name, [_rows(filtered, numbers, groups.queries_G)])
        return name

    def _merged(self, tables: Mapping[int, str]) -> str:
        """Return the SELECT ``(number, paper, found_by)`` of pools within the limit.

        ``tables`` has the candidates of the rules that have any, by the rule's index.
        """
        each = " UNION ALL ".join(
            f"SELECT number, paper, CAST({1 << index} AS BIGINT) AS found_by FROM {name}"
            for index, name in tables.items()
        )
        most = sum(self.rules[index].count for index in tables)
        if len(tables) == 1 and most <= self.limit:
            return each
        merged = f"""
            SELECT number, paper, bit_or(found_by) AS found_by
            FROM ({each}) GROUP BY number, paper"""
        if most <= self.limit:
            return merged
        self.engine.create("merged", merged)
        self.engine.create("chosen", sample("merged", "number", "paper", self.limit, self.seed))
        return """
            SELECT merged.number, merged.paper, merged.found_by FROM merged JOIN chosen
            ON chosen.number = merged.number AND chosen.paper = merged.paper"""


def _rows(lists: Ragged, numbers_G: IntArray, queries_G: IntArray) -> pa.Table:
    """Return lists of candidates as table rows."""
    owners = lists.owners
    columns = {"number": numbers_G[owners], "query": queries_G[owners], "paper": lists.values}
    return pa.table(columns)
