"""Merging and removing texts moves every pair as a naive dictionary of rows does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.records import Rejects
from scimult.data.targets import TargetFile
from scimult.data.teacher import TeacherScores
from scimult.preparation import pair_columns
from scimult.preparation.collected import Collected, RawPairs
from scimult.preparation.config import SourceConfig
from scimult.preparation.hygiene.compact import RowMap, compact_pairs
from scimult.preparation.pair_columns import unique_pairs

COUNT = 12
SOURCE = SourceConfig(name="s", papers="p", citations="c")
SCRATCH = Path(tempfile.gettempdir())
_ROW = st.integers(0, COUNT - 1)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_columns, "_BLOCK", 4)
        yield


@given(
    pairs=st.lists(st.tuples(_ROW, _ROW), max_size=30),
    keepers=st.lists(_ROW, min_size=COUNT, max_size=COUNT),
    removed=st.sets(_ROW),
)
def test_pairs_follow_their_texts(
    pairs: list[tuple[int, int]], keepers: list[int], removed: set[int]
) -> None:
    keepers = [row if keepers[keepers[row]] != keepers[row] else keepers[row] for row in range(12)]
    keepers = [row if keepers[keeper] != keeper else keeper for row, keeper in enumerate(keepers)]
    gone = {keepers[row] for row in removed}
    kept = [row for row in range(COUNT) if keepers[row] == row and row not in gone]
    new = {row: kept.index(keepers[row]) for row in range(COUNT) if keepers[row] not in gone}
    pairs = sorted({pair for pair in pairs if pair[0] != pair[1]})

    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    columns = unique_pairs([(rows[:, 0], rows[:, 1])], SCRATCH)
    raw = RawPairs(SOURCE, "citations", *columns)
    score = {pair: float(number) for number, pair in enumerate(pairs)}
    teacher = TeacherScores(*columns, np.arange(len(pairs), dtype=np.float32))
    triples = np.array([(a, b, (b + 1) % COUNT) for a, b in pairs], dtype=np.int64).reshape(-1, 3)
    collected = Collected([raw], columns, columns, triples, teacher, {}, {}, Rejects())
    mask = np.isin(np.arange(COUNT), list(removed))
    moved, counts = compact_pairs(collected, RowMap(np.array(keepers), mask), SCRATCH)

    expected = {(new[a], new[b]) for a, b in pairs if a in new and b in new and new[a] != new[b]}
    part = moved.parts[0]
    for found in (moved.citations, moved.shown, (part.queries, part.positives)):
        assert list(zip(*(column.tolist() for column in found), strict=True)) == sorted(expected)
    moved_triples = {tuple(new.get(row) for row in triple) for triple in triples.tolist()}
    assert sorted(map(tuple, moved.triples.tolist())) == sorted(
        triple for triple in moved_triples if None not in triple
    )
    # Every pair and score remains, or is counted under the reason it was dropped.
    became = [number for what, number in counts.items() if not what.startswith("teacher")]
    assert len(pairs) == len(expected) + sum(became)
    assert len(pairs) == len(moved.teacher or ()) + sum(counts.values()) - sum(became)
    without = sum(a not in new or b not in new for a, b in pairs)
    assert counts["link_prediction: pairs removed with a text"] == without
    for a, b in expected:
        same = [score[pair] for pair in pairs if (new.get(pair[0]), new.get(pair[1])) == (a, b)]
        assert moved.teacher is not None
        found = moved.teacher(np.array([a]), np.array([b]))
        np.testing.assert_allclose(found, [np.mean(same)], rtol=1e-6)  # kept as float32


def test_targets_follow_their_texts_and_lost_ones_are_counted() -> None:
    """Text 1 merges into 0, 4 into 3, and 2 is removed; a task has one target of a text."""
    files = [
        TargetFile(source, task, "train", "regression", np.array(rows), np.array(rows) * 10.0)
        for source, task, rows in (
            ("s", "cited", [0, 1, 2]),
            ("r", "cited", [4]),
            ("s", "age", [2]),
        )
    ]
    none = np.empty(0, dtype=np.int64)
    columns, no_triples = (none, none), none.reshape(0, 3)
    collected = Collected([], columns, columns, no_triples, None, {}, {}, Rejects(), files)
    rows = RowMap(np.array([0, 0, 2, 3, 3]), np.arange(5) == 2)
    moved, counts = compact_pairs(collected, rows, SCRATCH)
    found = [(t.source, t.task, t.rows.tolist(), t.numbers.tolist()) for t in moved.targets]
    # Of an empty file nothing stays.
    assert found == [("s", "cited", [0], [0.0]), ("r", "cited", [1], [40.0])]
    assert counts["targets removed or merged with a text"] == 3


def test_collected_pairs_survive_the_disk(tmp_path: Path) -> None:
    columns = np.array([1, 2, 2]), np.array([0, 0, 1])
    rejects = Rejects(skip_bad=True)
    rejects.counts["a reason"] = 3
    rejects.examples["a reason"] = ["x"]
    raw = RawPairs(SOURCE, "citations", *columns)
    teacher = TeacherScores(*columns, np.array([0.5, 1.5, 2.5]))
    counts = {"s": {"papers": 3}}
    triples = np.array([(1, 0, 2), (2, 0, 1)])
    spaces = {"s": range(2)}
    before = Collected([raw], columns, columns, triples, teacher, spaces, counts, rejects)
    before.save(tmp_path)
    after = Collected.load(tmp_path, [SOURCE], Rejects(skip_bad=True))
    assert after.label_rows == before.label_rows
    assert after.counts == before.counts
    assert after.triples.tolist() == triples.tolist()
    assert after.rejects.summary() == rejects.summary()
    assert after.parts[0].queries.tolist() == [1, 2, 2]
    assert [column.tolist() for column in after.shown] == [[1, 2, 2], [0, 0, 1]]
    assert after.teacher is not None
    assert after.teacher(*columns).tolist() == [0.5, 1.5, 2.5]
