"""Every miner against the definition of SciMult section 3.4, written with plain sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.mining import graph, metadata
from scimult.mining.clicks import shown_not_positive
from scimult.mining.graph import cited_by_cited
from scimult.mining.metadata import Links, Relation, labels_of_neighbours

N = 9
SPACE = range(N, N + 5)
EDGES = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=30)
LABELS = st.sets(st.tuples(st.integers(0, N - 1), st.integers(N, N + 6)), max_size=25)
GROUPS = st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, 4)), max_size=20)
UNLIMITED = {"limit": 1000, "seed": 0}


def _by_row(pairs: set[tuple[int, int]]) -> Ragged:
    array = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return Ragged.from_pairs(array[:, 0], array[:, 1], N)


def _second(pairs: set[tuple[int, int]], first: int) -> set[int]:
    return {b for a, b in pairs if a == first}


def _sets(lists: Ragged) -> list[set[int]]:
    assert all(part.tolist() == sorted(set(part.tolist())) for part in lists)
    return [set(part.tolist()) for part in lists]


@pytest.mark.parametrize("groups_per_chunk", [1, 4, 1000])
@given(edges=EDGES)
def test_cited_by_cited(groups_per_chunk: int, edges: set[tuple[int, int]]) -> None:
    pairs = sorted(edges)
    queries = np.array([query for query, _ in pairs], dtype=np.int64)
    positives = Ragged.from_lists([[positive] for _, positive in pairs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "GROUPS_PER_CHUNK", groups_per_chunk)
        mined = cited_by_cited(queries, positives, _by_row(edges), **UNLIMITED)
    expected = [
        _second(edges, positive) - _second(edges, query) - {query} for query, positive in pairs
    ]
    assert _sets(mined) == expected


@given(edges=EDGES)
def test_cited_by_cited_of_several_positives(edges: set[tuple[int, int]]) -> None:
    queries = np.array(sorted({query for query, _ in edges}), dtype=np.int64)
    cites = _by_row(edges)
    mined = cited_by_cited(queries, cites.take(queries), cites, **UNLIMITED)
    expected = []
    for query in queries.tolist():
        own = _second(edges, query)
        reached = {c for positive in own for c in _second(edges, positive)}
        expected.append(reached - own - {query})
    assert _sets(mined) == expected


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
    queries = np.arange(N, dtype=np.int64)
    relations = [
        Links(_by_row(cites)),
        Relation.from_groups(_by_row(authors)),
        Relation.from_groups(_by_row(set(venues.items()))),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "QUERIES_PER_CHUNK", queries_per_chunk)
        mined = labels_of_neighbours(
            queries, relations, _by_row(labels), SPACE, max_neighbours=1000, **UNLIMITED
        )
    expected = []
    for query in range(N):
        near = _second(cites, query)
        near |= {p for p in range(N) if _second(authors, p) & _second(authors, query)}
        near |= {p for p in venues if query in venues and venues[p] == venues[query]}
        found = {label for paper in near for label in _second(labels, paper)}
        expected.append((found & set(SPACE)) - _second(labels, query))
    assert _sets(mined) == expected


@given(labels=LABELS, cites=EDGES)
def test_no_relation_gives_no_label(
    labels: set[tuple[int, int]], cites: set[tuple[int, int]]
) -> None:
    queries = np.arange(N, dtype=np.int64)
    mined = labels_of_neighbours(queries, [], _by_row(labels), SPACE, max_neighbours=5, **UNLIMITED)
    assert _sets(mined) == [set()] * N


@given(shown=EDGES, positives=EDGES)
def test_shown_not_positive(shown: set[tuple[int, int]], positives: set[tuple[int, int]]) -> None:
    queries = np.array(sorted({query for query, _ in positives}), dtype=np.int64)
    mined = shown_not_positive(queries, _by_row(positives), _by_row(shown), **UNLIMITED)
    assert _sets(mined) == [_second(shown, q) - _second(positives, q) for q in queries.tolist()]


@given(edges=EDGES, authors=GROUPS, labels=LABELS, limit=st.integers(1, 3), seed=st.integers(0, 5))
def test_limits_keep_a_seeded_part_of_the_whole(
    edges: set[tuple[int, int]],
    authors: set[tuple[int, int]],
    labels: set[tuple[int, int]],
    limit: int,
    seed: int,
) -> None:
    pairs = sorted(edges)
    queries = np.array([query for query, _ in pairs], dtype=np.int64)
    positives = Ragged.from_lists([[positive] for _, positive in pairs])
    chosen = {"limit": limit, "seed": seed}
    relation = Relation.from_groups(_by_row(authors))
    near = {"labels": _by_row(labels), "label_space": SPACE}

    def mine(options: dict[str, int], max_neighbours: int) -> list[list[set[int]]]:
        linked = cited_by_cited(queries, positives, _by_row(edges), **options)
        labelled = labels_of_neighbours(
            queries, [relation], max_neighbours=max_neighbours, **near, **options
        )
        return [_sets(linked), _sets(labelled)]

    for kept, whole in zip(mine(chosen, 1000), mine(UNLIMITED, 1000), strict=True):
        for part, everything in zip(kept, whole, strict=True):
            assert part <= everything
            assert len(part) == min(limit, len(everything))
    assert mine(chosen, 2) == mine(chosen, 2)
    for part, everything in zip(mine(UNLIMITED, 2)[1], mine(UNLIMITED, 1000)[1], strict=True):
        assert part <= everything


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
