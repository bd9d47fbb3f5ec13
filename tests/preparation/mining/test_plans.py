"""Every plan against the naive rule, on random graphs, with limits that apply."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.preparation.mining import plans
from scimult.preparation.mining.engine import DuckDBEngine
from scimult.preparation.mining.pools import BlockMiner, Groups, Pools, RuleSpec
from tests.preparation.mining.naive import World, as_rows, pool

N = 9
LABELS = range(N, N + 5)
EDGES = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=30)
FIELDS = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, 4)), max_size=20)
LIMITS, SEEDS = st.integers(1, 4), st.integers(0, 5)
MANY = 1000
Found = tuple[str, list[set[int]]]
quickly = settings(max_examples=20)


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    connection = duckdb.connect(config={"threads": 1})
    yield DuckDBEngine(connection)
    connection.close()


def by_pair(edges: set[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Return one group per edge, as for link prediction."""
    return [(a, (b,)) for a, b in sorted(edges)]


def by_query(edges: set[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]]:
    """Return one group per query, as for search and classification."""
    return [
        (q, tuple(sorted(b for a, b in edges if a == q))) for q in sorted({a for a, _ in edges})
    ]


def load(engine: DuckDBEngine, world: World) -> None:
    """Create the tables that ``Tables`` creates from a folder."""

    def table(name: str, columns: tuple[str, ...], rows: np.ndarray) -> None:
        rows = np.asarray(rows, dtype=np.int64).reshape(-1, len(columns))
        engine.load(name, [pa.table(dict(zip(columns, rows.T, strict=True)))])

    table("edges", ("citing", "cited"), as_rows(world.edges))
    table("shown", ("query", "paper"), as_rows(world.shown))
    table("triples", ("query", "positive", "negative"), np.array(sorted(world.triples)))
    table("draws", ("draw",), np.arange(64))
    table("drawn_from", ("place", "paper"), np.array(list(enumerate(world.candidates))))
    for kind, values in world.values.items():
        table(f"paper_{kind}", ("paper", "value"), as_rows(values))
        for name, among in (
            (kind, "true"),
            (f"{kind}_some", "paper IN (FROM drawn_from SELECT paper)"),
        ):
            engine.create(
                f"{name}_members",
                "SELECT value, row_number() OVER (PARTITION BY value ORDER BY paper) - 1 AS place, "
                f"paper FROM paper_{kind} WHERE {among}",
            )
            sizes = f"SELECT value, count(*) AS size FROM {name}_members GROUP BY value"
            engine.create(f"{name}_sizes", sizes)
        engine.create(
            f"{kind}_places",
            "SELECT paper, row_number() OVER (PARTITION BY paper ORDER BY value) - 1 AS place, "
            f"value FROM paper_{kind}",
        )
        counts = f"SELECT paper, count(*) AS size FROM {kind}_places GROUP BY paper"
        engine.create(f"{kind}_counts", counts)


def mined(
    engine: DuckDBEngine,
    world: World,
    specs: list[RuleSpec],
    known: set[tuple[int, int]],
    *,
    limit: int = MANY,
    seed: int = 0,
    groups_per_block: int = MANY,
) -> Pools:
    """Return the pools of all groups, mined block by block."""
    lists = Ragged.from_lists([positives for _, positives in world.groups])
    queries = np.array([query for query, _ in world.groups], dtype=np.int64)
    load(engine, world)
    table = {"number": lists.owners, "query": queries[lists.owners], "paper": lists.values}
    engine.load("positives", [pa.table(table)])
    rows = as_rows(known)
    engine.load("all_known", [pa.table({"query": rows[:, 0], "paper": rows[:, 1]})])
    miner = BlockMiner(
        engine,
        Groups(queries, lists),
        "positives",
        ["SELECT query, paper FROM all_known"],
        specs,
        limit=limit,
        seed=seed,
    )
    starts = range(0, max(len(queries), 1), groups_per_block)
    parts = [miner.mine(start, min(start + groups_per_block, len(queries))) for start in starts]
    return Pools(
        Ragged.concatenate([part.negatives for part in parts]),
        np.concatenate([part.found_by for part in parts]),
        {name: sum(part.counts[name] for part in parts) for name in parts[0].counts},
    )


def sets(lists: Ragged) -> list[set[int]]:
    """Return lists as sets, after checking that they are sorted and unique."""
    assert all(part.tolist() == sorted(set(part.tolist())) for part in lists)
    return [set(part.tolist()) for part in lists]


def assert_candidates(
    engine: DuckDBEngine, world: World, rules: dict[str, Found], seed: int = 0
) -> None:
    """Compare plans with the naive rules, with and without known positives."""
    known = set(world.edges)
    named = [
        RuleSpec(name, plan, MANY, exclude_known)
        for name, (plan, _) in rules.items()
        for exclude_known in (True, False)
    ]
    pools = mined(engine, world, named, known, limit=10 * MANY, seed=seed)
    sets(pools.negatives)
    for place, spec in enumerate(named):
        given = (pools.found_by >> place) & 1 == 1
        owners, rows = pools.negatives.owners[given], pools.negatives.values[given]
        left_out = known if spec.exclude_known else set()
        for number, candidates in enumerate(rules[spec.name][1]):
            expected, _ = pool(world, number, [(candidates, MANY)], left_out, MANY, seed)
            assert set(rows[owners == number].tolist()) == expected, spec.name


@pytest.mark.long
@quickly
@given(edges=EDGES, several=st.booleans(), limit=LIMITS, seed=SEEDS)
def test_graph_rules(
    engine: DuckDBEngine, edges: set[tuple[int, int]], several: bool, limit: int, seed: int
) -> None:
    world = World(by_query(edges) if several else by_pair(edges), edges)
    numbers = range(len(world.groups))
    rules = {
        "cited_by_cited": (plans.CITED_BY_CITED, [world.cited_by_cited(n) for n in numbers]),
        "co_cited": (
            plans.co_cited(limit, seed),
            [world.co_cited(n, limit, seed) for n in numbers],
        ),
    }
    assert_candidates(engine, world, rules, seed)


@pytest.mark.long
@quickly
@given(
    edges=EDGES,
    authors=FIELDS,
    venues=st.dictionaries(st.integers(0, N - 1), st.integers(0, 2)),
    labels=st.sets(st.tuples(st.integers(0, N - 1), st.integers(N, N + 6)), max_size=25),
    limit=LIMITS,
    seed=SEEDS,
)
def test_labels_of_neighbours(
    engine: DuckDBEngine,
    edges: set[tuple[int, int]],
    authors: set[tuple[int, int]],
    venues: dict[int, int],
    labels: set[tuple[int, int]],
    limit: int,
    seed: int,
) -> None:
    values = {"author": authors, "venue": set(venues.items()), "label": labels}
    world = World(by_query(labels), edges, values=values, labels=LABELS)
    near = {
        "cited": plans.cited_papers(limit, seed),
        "author": plans.sharing_papers("author", limit, seed),
        "venue": plans.sharing_papers("venue", limit, seed),
    }
    rules = {
        relation: (
            plans.labels_of(select, LABELS),
            [world.labels_of(n, relation, limit, seed) for n in range(len(world.groups))],
        )
        for relation, select in near.items()
    }
    assert_candidates(engine, world, rules, seed)


@quickly
@given(
    positives=EDGES,
    shown=EDGES,
    triples=st.sets(st.tuples(*[st.integers(0, N - 1)] * 3), max_size=40),
    several=st.booleans(),
)
def test_shown(
    engine: DuckDBEngine,
    positives: set[tuple[int, int]],
    shown: set[tuple[int, int]],
    triples: set[tuple[int, int, int]],
    several: bool,
) -> None:
    groups = by_query(positives) if several else by_pair(positives)
    world = World(groups, positives, shown, triples)
    found = [world.shown_for(number) for number in range(len(groups))]
    assert_candidates(engine, world, {"shown": (plans.SHOWN, found)})


@pytest.mark.long
@quickly
@given(positives=EDGES, fields=FIELDS, count=st.integers(1, 3), seed=SEEDS)
def test_easy_rules(
    engine: DuckDBEngine,
    positives: set[tuple[int, int]],
    fields: set[tuple[int, int]],
    count: int,
    seed: int,
) -> None:
    candidates = tuple(range(2, N))
    world = World(by_query(positives), positives, values={"label": fields}, candidates=candidates)
    numbers = range(len(world.groups))
    random = plans.random("drawn_from", len(candidates), count, seed)
    rules = {
        "random": (random, [world.random(n, count, seed) for n in numbers]),
        "same": (
            plans.same_field("label", "label_some", count, seed),
            [world.same_field(n, "label", count, seed) for n in numbers],
        ),
        "other": (
            plans.other_field("label", random),
            [world.other_field(n, "label", count, seed) for n in numbers],
        ),
    }
    assert_candidates(engine, world, rules, seed)


@pytest.mark.long
@quickly
@given(
    edges=EDGES,
    shown=EDGES,
    counts=st.tuples(LIMITS, LIMITS),
    limit=st.integers(1, 6),
    seed=SEEDS,
    groups_per_block=st.sampled_from([1, 4, MANY]),
)
def test_pools_of_two_rules(
    engine: DuckDBEngine,
    edges: set[tuple[int, int]],
    shown: set[tuple[int, int]],
    counts: tuple[int, int],
    limit: int,
    seed: int,
    groups_per_block: int,
) -> None:
    world = World(by_pair(edges), edges, shown)
    rules = (plans.CITED_BY_CITED, plans.SHOWN)
    named = [RuleSpec(str(place), rules[place], counts[place]) for place in range(2)]
    choices = {"limit": limit, "seed": seed, "groups_per_block": groups_per_block}
    pools = mined(engine, world, named, edges, **choices)
    found, bits = {"0": 0, "1": 0}, []
    for number, negatives in enumerate(sets(pools.negatives)):
        candidates = (world.cited_by_cited(number), world.shown_for(number))
        finds = list(zip(candidates, counts, strict=True))
        expected, kept = pool(world, number, finds, edges, limit, seed)
        assert negatives == expected
        bits += [(row in kept[0]) + 2 * (row in kept[1]) for row in sorted(expected)]
        for place in range(2):
            found[str(place)] += len(kept[place])
    assert pools.counts == found
    assert pools.found_by.tolist() == bits
    assert pools.found_by.dtype == np.uint8


def test_what_two_positives_of_a_group_cite_is_one_candidate(engine: DuckDBEngine) -> None:
    edges = {(0, 1), (0, 2), (1, 5), (2, 5), (2, 6)}
    pools = mined(
        engine, World([(0, (1, 2))], edges), [RuleSpec("a", plans.CITED_BY_CITED, MANY)], set()
    )
    assert pools.negatives[0].tolist() == [5, 6]
    assert pools.counts == {"a": 2}


def test_the_limit_favours_no_rule(engine: DuckDBEngine) -> None:
    """A rule with many candidates must not displace those of a rule with few."""
    shown = {(0, row) for row in range(100, 200)}
    given_for = {(0, 1, row) for row in range(200, 204)}
    world = World([(0, (1,))] * 2000, shown=shown, triples=given_for)
    few = "SELECT number, own.query, negative AS paper FROM own JOIN triples USING (query)"
    many = "SELECT number, asked.query, paper FROM asked JOIN shown USING (query)"
    named = [RuleSpec("many", many, 4), RuleSpec("few", few, 4)]
    negatives = mined(engine, world, named, set(), limit=4, seed=1).negatives
    # Binomial with 8000 draws of probability 1/2: five standard deviations are 0.03.
    assert abs((negatives.values >= 200).mean() - 0.5) < 0.03


@pytest.mark.long
def test_a_classic_and_a_huge_venue_cost_what_their_limit_allows(engine: DuckDBEngine) -> None:
    """100,000 papers cite paper 0 and share a venue: no join is quadratic."""
    count, limit, cited = 100_001, 8, 300
    edges = {(row, 0) for row in range(1, count)} | {(row, row - 1) for row in range(2, count)}
    edges |= {(0, count + row) for row in range(cited)}
    labels = {(row, 2 * count + row % 50) for row in range(count)}
    values = {"venue": {(row, 0) for row in range(count)}, "label": labels}
    world = World(by_pair({(row, 0) for row in range(1, 2001)}), edges, values=values)
    world.labels = range(2 * count, 2 * count + 50)
    rows = np.unique(
        mined(
            engine, world, [RuleSpec("co", plans.co_cited(limit, 3), MANY)], set()
        ).negatives.lengths
    )
    assert rows.max() <= limit
    # What a classic cites is joined once per group, however many papers cite it.
    joined = engine.fetch(f"SELECT count(*) AS n FROM ({plans.CITED_BY_CITED})")
    assert joined["n"][0] == MANY * cited  # of the last block
    pools = mined(engine, world, [RuleSpec("hard", plans.CITED_BY_CITED, 4)], set())
    assert (pools.negatives.lengths == 4).all()
    assert (pools.negatives.values >= count).all()
    engine.create("asked", "SELECT number, query FROM positives")
    near = plans.sharing_papers("venue", limit, 3)
    counts = engine.fetch(f"SELECT count(*) AS n, count(DISTINCT paper) AS d FROM ({near})")
    assert counts["n"][0] == 2000 * limit
    # With replacement: of 100,000 papers 16,000 draws reach 14,800 distinct ones.
    assert counts["d"][0] > 14_300
    # For the classic as a query, no more than the limit of its cited papers are visited.
    engine.create("asked", "SELECT CAST(0 AS BIGINT) AS number, CAST(0 AS BIGINT) AS query")
    visited = engine.fetch(f"SELECT count(*) AS n FROM ({plans.cited_papers(limit, 3)})")
    assert visited["n"][0] == limit


def test_groups_of_a_file() -> None:
    pairs = PairFile(
        "x", "t", "train", np.arange(2), Ragged.from_lists([[3], [4]]), Ragged.empty(2)
    )
    assert Groups.of(pairs).take(np.array([1])).positives.values.tolist() == [4]
