"""Pair files survive a round trip; known positives against plain sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.pairs import PairFile, PairPart, known_positives, read_pairs, write_pairs
from scimult.data.ragged import Ragged
from scimult.errors import DataError

GROUPS = st.lists(
    st.tuples(st.integers(0, 5), *[st.lists(st.integers(0, 9), max_size=4)] * 3), max_size=8
)


def _pairs(groups: list[tuple[int, list[int], list[int], list[int]]]) -> PairFile:
    queries = np.array([group[0] for group in groups], dtype=np.int64)
    lists = [Ragged.from_lists([group[i] for group in groups]) for i in (1, 2, 3)]
    return PairFile("toy", "search", "train", queries, *lists)


@given(groups=GROUPS)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[tuple[int, list[int], list[int], list[int]]],
) -> None:
    path = tmp_path_factory.mktemp("pairs") / "p.arrow"
    pairs = _pairs(groups)
    write_pairs(path, pairs)
    back = read_pairs(path)
    assert (back.source, back.task, back.split) == ("toy", "search", "train")
    assert back.name == "toy.search"
    assert back.queries.tolist() == pairs.queries.tolist()
    for name in ("positives", "negatives", "unsampled"):
        before, after = getattr(pairs, name), getattr(back, name)
        assert [part.tolist() for part in after] == [part.tolist() for part in before]


@given(GROUPS, GROUPS, st.sampled_from([None, "links", "citations", "neighbours"]))
def test_known_positives_is_the_union_of_all_groups(
    first: list[tuple[int, list[int], list[int], list[int]]],
    second: list[tuple[int, list[int], list[int], list[int]]],
    part: PairPart | None,
) -> None:
    """A citation is known to both papers: one similarity is trained for both directions."""
    expected: dict[int, set[int]] = {}
    for number, groups in enumerate((first, second)):
        for query, positives, _, unsampled in groups:
            for positive in {*positives, *unsampled}:
                expected.setdefault(query, set()).add(positive)
                if number and part in ("citations", "neighbours"):
                    expected.setdefault(positive, set()).add(query)
    known = known_positives([_pairs(first), replace(_pairs(second), part=part)])
    assert {query: set(rows.tolist()) for query, rows in known.items()} == expected
    assert all(rows.tolist() == sorted(set(rows.tolist())) for rows in known.values())


def test_known_positives_of_a_stranger() -> None:
    known = known_positives([_pairs([(3, [1], [], [])])])
    for query in (2, 4):
        with pytest.raises(KeyError):
            known[query]


def test_a_damaged_pair_file(tmp_path: Path) -> None:
    path = tmp_path / "p.arrow"
    write_pairs(path, _pairs([(3, [1], [], [])]))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"search", b"\xff\xfearch"))
    with pytest.raises(DataError, match=r"p\.arrow: not a readable Arrow file.*Fix: "):
        read_pairs(path)
    path.write_bytes(whole[:100])
    with pytest.raises(DataError, match=r"p\.arrow: not a readable Arrow file.*Fix: "):
        read_pairs(path)
