"""Per-query scores on disk: written and read in any order; damage is reported."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.evaluation.per_query import read_per_query, write_per_query

# Python 3.10 reads no NUL from a table; identifiers that JSON allows have none.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
SCORES = st.floats(0, 1)
IDS = ["q1", "q2", "q3"]
COLUMNS = {"recall@20": [0.1, 1 / 3, 1.0], "map": [0.0, 1e-17, 0.5]}


@settings(max_examples=10)  # each one waits for the disk
@given(
    rows=st.lists(
        st.tuples(TEXT, SCORES, TEXT), min_size=1, max_size=4, unique_by=lambda row: row[0]
    )
)
@example(rows=[("a\rb", 0.1, "\r"), ('"', 1 / 3, "a\tb"), ("\n", 0.0, '"x"')])
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float, str]]
) -> None:
    """Ids and labels may contain tabs, quotes and line ends; scores survive to the last bit."""
    out = tmp_path_factory.mktemp("out")
    ids, scores, labels = (list(column) for column in zip(*rows, strict=True))
    write_per_query(out, "x", "set", ids, {"map": scores, "gold": labels})  # type: ignore[dict-item]
    found = read_per_query(out, "x", "set")
    assert found.query_ids == ids
    assert found.column("gold") == labels
    assert found.scores(["map"])[:, 0].tolist() == scores


def test_scores_stand_in_the_order_asked_for(tmp_path: Path) -> None:
    write_per_query(tmp_path, "x", "set", IDS, COLUMNS)
    found = read_per_query(tmp_path, "x", "set").in_order_of(["q3", "q1", "q2"])
    assert found.scores(["map", "recall@20"]).tolist() == [[0.5, 1.0], [0.0, 0.1], [1e-17, 1 / 3]]
    with pytest.raises(DataError, match=r"only one of the systems has scores for 2 queries.*'q2'"):
        found.in_order_of(["q1", "q3", "q4"])
    with pytest.raises(DataError, match=r"missing column \(value: 'mrr'\)"):
        found.scores(["mrr"])


def test_the_same_scores_give_the_same_bytes(tmp_path: Path) -> None:
    for system in ("x", "y"):
        write_per_query(tmp_path, system, "set", IDS, COLUMNS)
    first, second = (tmp_path / f"{name}/per_query/set.tsv.gz" for name in "xy")
    assert first.read_bytes() == second.read_bytes()


def test_common_tools_read_the_file_and_it_is_small(tmp_path: Path) -> None:
    """20,000 queries with 10 relevant papers each take less than 10 bytes per query."""
    hits = np.random.default_rng(0).binomial(10, 0.4, (3, 20_000)) / 10
    columns = {f"recall@{k}": list(column) for k, column in zip((20, 50, 100), hits, strict=True)}
    write_per_query(tmp_path, "x", "set", [str(row) for row in range(20_000)], columns)
    path = tmp_path / "x/per_query/set.tsv.gz"
    assert path.stat().st_size < 200_000
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert float(rows[7]["recall@50"]) == hits[1, 7]


def test_plain_tables_of_older_results_are_read_until_new_ones_replace_them(tmp_path: Path) -> None:
    plain = tmp_path / "x/per_query/set.tsv"
    plain.parent.mkdir(parents=True)
    plain.write_text("query-id\tmap\nq1\t0.25\n", encoding="utf-8")
    assert read_per_query(tmp_path, "x", "set").scores(["map"]).tolist() == [[0.25]]
    write_per_query(tmp_path, "x", "set", IDS, COLUMNS)
    assert not plain.exists()
    assert read_per_query(tmp_path, "x", "set").query_ids == IDS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not per-query scores"),
        ("query-id\tmap\n", "no header or no queries"),
        ("id\tmap\nq1\t0.5\n", "no header or no queries"),
        ("query-id\tmap\nq1\t0.5\nq2\n", "not per-query scores"),
        ("query-id\tmap\nq1\t0.5\nq1\t0.5\n", "a query occurs twice"),
        ("query-id\tmap\nq1\thigh\n", "not a score: "),
    ],
)
def test_damaged_tables(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x/per_query/set.tsv"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=f"set.tsv: .*{message}.*Fix: evaluate the system again"):
        read_per_query(tmp_path, "x", "set").scores(["map"])


def test_a_table_cut_off_or_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no per-query scores of x on set\. Fix: evaluate the sys"):
        read_per_query(tmp_path, "x", "set")
    write_per_query(tmp_path, "x", "set", IDS, COLUMNS)
    path = tmp_path / "x/per_query/set.tsv.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="not per-query scores"):
        read_per_query(tmp_path, "x", "set")
