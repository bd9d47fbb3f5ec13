"""Every rule against its definition, written with plain sets, on random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.preparation.mining import metadata, pools
from scimult.preparation.mining.clicks import Shown
from scimult.preparation.mining.easy import OtherField, Random, SameField, fields_to_rows
from scimult.preparation.mining.graph import CitedByCited, CoCited
from scimult.preparation.mining.metadata import LabelsOfNeighbours, Links, Relation
from scimult.preparation.mining.pools import Groups, Ingredient, Rule, mine_pools
from scimult.preparation.mining.sampling import Membership

N = 9
SPACE = range(N, N + 5)
EDGES = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=30)
LABELS = st.sets(st.tuples(st.integers(0, N - 1), st.integers(N, N + 6)), max_size=25)
GROUPS = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, 4)), max_size=20)


def _by_row(pairs: set[tuple[int, int]]) -> Ragged:
    array = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return Ragged.from_pairs(array[:, 0], array[:, 1], N)


def _second(pairs: set[tuple[int, int]], first: int) -> set[int]:
    return {b for a, b in pairs if a == first}


def _first(pairs: set[tuple[int, int]], second: int) -> set[int]:
    return {a for a, b in pairs if b == second}


def _sets(lists: Ragged) -> list[set[int]]:
    assert all(part.tolist() == sorted(set(part.tolist())) for part in lists)
    return [set(part.tolist()) for part in lists]


def _groups(queries: list[int], positives: list[list[int]]) -> PairFile:
    lists = Ragged.from_lists(positives)
    rows = np.array(queries, dtype=np.int64)
    return PairFile("x", "t", "train", rows, lists, Ragged.empty(len(rows)))


def _pair_groups(edges: set[tuple[int, int]]) -> PairFile:
    """Return one group per edge, as link prediction has."""
    pairs = sorted(edges)
    return _groups([a for a, _ in pairs], [[b] for _, b in pairs])


def _query_groups(edges: set[tuple[int, int]]) -> PairFile:
    """Return one group per query, as search and classification have."""
    queries = sorted({a for a, _ in edges})
    return _groups(queries, [sorted(_second(edges, query)) for query in queries])


def _candidates(rule: Rule, pairs: PairFile) -> list[set[int]]:
    return _sets(rule.candidates(Groups.of(pairs)))


def _mined(
    rule: Rule, pairs: PairFile, known: Ragged, *, exclude_known: bool = True, limit: int = 1000
) -> list[set[int]]:
    ingredient = Ingredient("rule", rule, limit, exclude_known)
    is_known = Membership(known)
    mined = mine_pools(Groups.of(pairs), [ingredient], is_known, limit=limit, seed=0)
    return _sets(mined.negatives)


@pytest.mark.parametrize("groups_per_chunk", [1, 4, 1000])
@given(edges=EDGES, other=EDGES)
def test_cited_by_cited(
    groups_per_chunk: int, edges: set[tuple[int, int]], other: set[tuple[int, int]]
) -> None:
    cites = edges | other
    pairs = _pair_groups(edges)
    rule = CitedByCited(_by_row(cites))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "GROUPS_PER_CHUNK", groups_per_chunk)
        strict = _mined(rule, pairs, _by_row(cites))
        loose = _mined(rule, pairs, _by_row(cites), exclude_known=False)
    for (query, positive), without, with_known in zip(sorted(edges), strict, loose, strict=True):
        assert without == _second(cites, positive) - _second(cites, query) - {query}
        assert with_known == _second(cites, positive) - {query, positive}


@given(edges=EDGES)
def test_cited_by_cited_of_several_positives(edges: set[tuple[int, int]]) -> None:
    pairs = _query_groups(edges)
    expected = []
    for query in pairs.queries.tolist():
        own = _second(edges, query)
        reached = {c for positive in own for c in _second(edges, positive)}
        expected.append(reached - own - {query})
    assert _mined(CitedByCited(_by_row(edges)), pairs, _by_row(edges)) == expected


@given(edges=EDGES, several=st.booleans())
def test_co_cited(edges: set[tuple[int, int]], several: bool) -> None:
    pairs = _query_groups(edges) if several else _pair_groups(edges)
    cited_by = _by_row({(b, a) for a, b in edges})
    rule = CoCited(_by_row(edges), cited_by, max_citing=1000, seed=0)
    expected = []
    for query, positives in zip(pairs.queries.tolist(), pairs.positives, strict=True):
        citing = {a for positive in positives.tolist() for a in _first(edges, positive)}
        found = {b for a in citing for b in _second(edges, a)}
        expected.append(found - _second(edges, query) - {query})
    assert _mined(rule, pairs, _by_row(edges)) == expected
    few = CoCited(_by_row(edges), cited_by, max_citing=1, seed=3)
    for part, whole in zip(_mined(few, pairs, _by_row(edges)), expected, strict=True):
        assert part <= whole


@pytest.mark.parametrize("queries_per_chunk", [1, 1000])
@given(
    cites=EDGES,
    authors=GROUPS,
    venues=st.dictionaries(st.integers(0, N - 1), st.integers(0, 2)),
    labels=LABELS,
)
def test_labels_of_neighbours(
    queries_per_chunk: int,
    cites: set[tuple[int, int]],
    authors: set[tuple[int, int]],
    venues: dict[int, int],
    labels: set[tuple[int, int]],
) -> None:
    near = [
        (Links(_by_row(cites)), lambda a, b: (a, b) in cites),
        (
            Relation.from_groups(_by_row(authors)),
            lambda a, b: bool(_second(authors, a) & _second(authors, b)),
        ),
        (
            Relation.from_groups(_by_row(set(venues.items()))),
            lambda a, b: a in venues and venues.get(b) == venues[a],
        ),
    ]
    pairs = _groups(list(range(N)), [[] for _ in range(N)])
    for relation, is_near in near:
        rule = LabelsOfNeighbours(relation, _by_row(labels), SPACE, max_neighbours=1000, seed=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metadata, "QUERIES_PER_CHUNK", queries_per_chunk)
            mined = _mined(rule, pairs, _by_row(labels))
        for query in range(N):
            papers = {paper for paper in range(N) if is_near(query, paper)}
            found = {label for paper in papers for label in _second(labels, paper)}
            assert mined[query] == (found & set(SPACE)) - _second(labels, query)


@given(shown=EDGES, positives=EDGES)
def test_shown_not_positive(shown: set[tuple[int, int]], positives: set[tuple[int, int]]) -> None:
    pairs = _query_groups(positives)
    mined = _mined(Shown(_by_row(shown)), pairs, _by_row(positives))
    queries = pairs.queries.tolist()
    assert mined == [_second(shown, q) - _second(positives, q) - {q} for q in queries]


@given(fields=GROUPS, positives=EDGES, seed=st.integers(0, 3))
def test_easy_negatives_are_of_the_right_field(
    fields: set[tuple[int, int]], positives: set[tuple[int, int]], seed: int
) -> None:
    pairs, rows = _query_groups(positives), np.arange(2, N, dtype=np.int64)
    fields_of = _by_row(fields)
    # 200 draws of at most 7 candidates: a candidate is missed with probability below 1e-9.
    same = _candidates(SameField(fields_of, fields_to_rows(fields_of, rows), 200, seed), pairs)
    other = _candidates(OtherField(rows, fields_of, 200, seed), pairs)
    anything = _candidates(Random(rows, 200, seed), pairs)
    for place, query in enumerate(pairs.queries.tolist()):
        mine = _second(fields, query)
        known = {row for row in rows.tolist() if _second(fields, row)}
        sharing = {row for row in known if _second(fields, row) & mine}
        assert anything[place] == set(rows.tolist())
        assert same[place] == sharing
        assert other[place] == (known - sharing if mine else set())


@given(
    edges=EDGES,
    shown=EDGES,
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    limit=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_counts_and_limit_keep_a_seeded_part_of_each_rule(
    edges: set[tuple[int, int]],
    shown: set[tuple[int, int]],
    counts: tuple[int, int],
    limit: int,
    seed: int,
) -> None:
    pairs, known = _pair_groups(edges), _by_row(edges)
    rules = [CitedByCited(known), Shown(_by_row(shown))]
    whole = [_mined(rule, pairs, known) for rule in rules]
    named = [Ingredient(str(i), rules[i], counts[i]) for i in range(2)]
    mined = mine_pools(Groups.of(pairs), named, Membership(known), limit=limit, seed=seed)
    for i in range(2):
        assert mined.found[str(i)] == sum(min(counts[i], len(part)) for part in whole[i])
    for place, pool in enumerate(_sets(mined.negatives)):
        kept = [min(counts[i], len(whole[i][place])) for i in range(2)]
        assert pool <= whole[0][place] | whole[1][place]
        assert min(limit, max(kept)) <= len(pool) <= min(limit, sum(kept))

    # Some groups alone get what they get among all.
    some = np.arange(len(pairs), dtype=np.int64)[::2]
    groups = Groups.of(pairs).take(some)
    again = mine_pools(groups, named, Membership(known), limit=limit, seed=seed)
    assert _sets(again.negatives) == _sets(mined.negatives.take(some))


@given(
    edges=EDGES,
    shown=EDGES,
    triples=st.sets(st.tuples(*[st.integers(0, N - 1)] * 3), max_size=40),
)
def test_negatives_of_pairs_and_of_queries(
    edges: set[tuple[int, int]],
    shown: set[tuple[int, int]],
    triples: set[tuple[int, int, int]],
) -> None:
    rule = Shown(_by_row(shown), np.array(sorted(triples), dtype=np.int64).reshape(-1, 3))
    for pairs in (_pair_groups(edges), _query_groups(edges)):
        found = _sets(rule.candidates(Groups.of(pairs)))
        for query, positives, pool in zip(pairs.queries, pairs.positives, found, strict=True):
            given_for = {n for q, p, n in triples if q == query and p in positives}
            assert pool == _second(shown, query) | given_for
        # Where duplicates merged, a triple's negative may be its own positive or query.
        for query, pool, mined in zip(
            pairs.queries, found, _mined(rule, pairs, _by_row(edges)), strict=True
        ):
            assert mined == pool - _second(edges, query) - {query}


@given(edges=EDGES, shown=EDGES)
def test_each_negative_names_all_rules_that_gave_it(
    edges: set[tuple[int, int]], shown: set[tuple[int, int]]
) -> None:
    pairs, known = _pair_groups(edges), _by_row(edges)
    rules = [CitedByCited(known), Shown(_by_row(shown))]
    whole = [_mined(rule, pairs, known) for rule in rules]
    named = [Ingredient(str(i), rules[i], 1000) for i in range(2)]
    mined = mine_pools(Groups.of(pairs), named, Membership(known), limit=3, seed=0)
    places = zip(mined.negatives.owners, mined.negatives.values, mined.found_by, strict=True)
    for place, row, bits in places:
        assert bits == sum(1 << i for i in range(2) if row in whole[i][place])


def test_the_limit_favours_no_rule() -> None:
    """A rule with many finds must not push out one with few, which keeps all of its own."""
    count = 2000
    pairs = _groups([0] * count, [[] for _ in range(count)])
    many = Shown(Ragged.from_lists([range(100, 200)]))
    few = Shown(Ragged.from_lists([range(200, 204)]))
    named = [Ingredient("many", many, 4), Ingredient("few", few, 4)]
    is_known = Membership(Ragged.empty(1))
    mined = mine_pools(Groups.of(pairs), named, is_known, limit=4, seed=1).negatives
    # Binomial with 8000 draws of probability 1/2: five standard deviations are 0.03.
    assert abs((mined.values >= 200).mean() - 0.5) < 0.03


def test_work_is_bounded_in_a_huge_venue_and_a_long_author_list() -> None:
    count, limit = 50_000, 8
    venue = Relation.from_groups(
        Ragged.from_pairs(np.arange(count), np.zeros(count, dtype=np.int64), count)
    )
    found = venue.neighbours(np.arange(100, dtype=np.int64), limit, seed=3)
    assert found.lengths.max() <= limit
    assert found.lengths.mean() > limit - 1
    assert len(np.unique(found.values)) > 500

    many = np.arange(3000, dtype=np.int64)
    authors = Relation.from_groups(
        Ragged.from_pairs(np.r_[np.zeros(3000, np.int64), many % 10 + 1], np.r_[many, many], 11)
    )
    assert authors.neighbours(np.zeros(1, dtype=np.int64), limit, seed=3).lengths[0] <= limit**2
