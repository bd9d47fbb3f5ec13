"""An SQL expression sees every record as other columns do, and leaves those as they are."""

from __future__ import annotations

import bz2
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.data.importers.columns import Columns
from scimult.data.importers.kinds import joined, kind_of, sql_type
from scimult.data.records import Record, Rejects
from scimult.errors import DataError
from tests.data.importers.written import lines, read, written

Found = tuple[list[Record], dict[str, int]]


def _read(path: Path, names: Mapping[str, str], rejects: Rejects | None = None) -> list[Record]:
    return list(Columns([path], names, ["id"]).read(rejects or Rejects()))


def _outcome(path: Path, names: Mapping[str, str], *, skip_bad: bool) -> Any:
    """Return records without ``sql``, with what was left out, or the error."""
    rejects = Rejects(skip_bad=skip_bad)
    try:
        rows = _read(path, names, rejects)
    except DataError as error:
        return str(error)
    plain = [(r.line, {n: repr(v) for n, v in r.fields.items() if n != "sql"}) for r in rows]
    return plain, rejects.examples


MIXED = lines(
    {"id": 1, "title": "One", "labels": ["x"], "m": {"a": 1}},
    {"id": "b", "title": "Two", "labels": "x;y"},
    {"id": "007", "title": "3", "labels": [1, "z"], "m": {"A": "2019-01-01", "a": 2}},
    {"id": 12345678901234567890123, "title": "2020-05-05", "score": 0.1},
    {"id": 1.0, "title": "12:30:00", "labels": None, "score": 1, "m": {"": 10**50}},
    {"id": 10**50, "title": None, "labels": {"a": []}, "score": 1e300},
)
TABLE = "id,title,labels\n"
FILES = {
    "mixed.jsonl": MIXED,
    "array.json": json.dumps([json.loads(line) for line in MIXED.splitlines()]),
    "torn.jsonl": MIXED + '{"id": 2, "title"\n[]\n{"id": 3, "title": "last"}\n',
    "open.csv": TABLE + '1,a,"b\n2,c,d\n3,d,e\n',
    "quotes.csv": TABLE + "1,'Tis one',A\n2,'Two, and more',B\n3,'Three',C\n",
    "apostrophes.csv": TABLE + "1,'Yes',A\n2,'No',B\n",
    "preamble.csv": "My library export\n" + TABLE + "1,one,a\n2,two,y\n",
    "short.csv": TABLE + "1,one\n2,two,y\n3,three,z\n",
    "hash.csv": TABLE + "#1,One,A\n#2,C# and F#,B\n",
    "null.csv": TABLE + "1,NULL,x\n2,null,\n3,NA,nan\n",
    "spaces.csv": TABLE + '1, lead ,"  x  "\n\n2,,\n',
    "excel.csv": "sep=;\nid;title;labels\n1;a,b;c\n",
    "dimensions.csv": 'About the data: Exported, for "nets".\nid;title;labels\n1;a,b;c\n',
    "nameless.csv": "id,title,,\n1,a,x,y\n",
    "inches.csv": 'id,title,labels\n1,"a ""q"" t",b\n007,1e5,"two\nlines"\n',
    "quotes.tsv": 'id\ttitle\tlabels\n1\tA "Deep" net\tx\n2\t"Deep" nets\ty\n3\t"open\tz\n',
}


@pytest.mark.long
@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_other_columns_are_the_same_with_an_expression(
    tmp_path: Path, name: str, skip_bad: bool
) -> None:
    path = written(tmp_path, name, FILES[name])
    names = {column: column for column in ("id", "title", "labels", "score", "m")}
    wanted = _outcome(path, names, skip_bad=skip_bad)
    sql = {**names, "sql": "concat(id, title)"}
    assert _outcome(path, sql, skip_bad=skip_bad) == wanted


def test_other_columns_of_parquet_are_the_same_with_an_expression(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["1", "2"],
            "day": [date(2020, 1, 2), None],
            "price": [Decimal("1.50"), Decimal("2.25")],
            "keys": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
            "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
            "raw": [b"\xff", None],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    names = {name: name for name in table.column_names}
    wanted = _outcome(tmp_path / "a.parquet", names, skip_bad=False)
    sql = {"sql": "year(day) + pair[2] + keys['a']"}
    assert _outcome(tmp_path / "a.parquet", {**names, **sql}, skip_bad=False) == wanted
    assert _read(tmp_path / "a.parquet", {"id": "id", **sql})[0].fields["sql"] == 2023


@pytest.mark.long
def test_expressions_see_fields_and_types_that_first_appear_late(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": i, "title": "t", "score": 1} for i in range(21_000)]
    rows[-1] |= {"score": 0.4, "doi": "10.1/a", "labels": ["a"]}
    path = written(tmp_path, "late.jsonl", lines(*rows))
    names = {"id": "id", "doi": "doi", "score": "score * 2", "label": "upper(labels[1])"}
    first, *_, last = _read(path, names)
    assert first.fields == {"id": 0, "score": 2.0, "label": None}
    assert last.fields == {"id": 20_999, "doi": "10.1/a", "score": 0.8, "label": "A"}


def test_values_of_several_types_are_text_to_an_expression(tmp_path: Path) -> None:
    path = written(tmp_path, "mixed.jsonl", MIXED)
    rows = _read(path, {"id": "id", "text": "concat(id, '')", "first": "concat(labels, '')"})
    texts = ["1", "b", "007", "12345678901234567890123", "1.0", str(10**50)]
    assert [row.fields["text"] for row in rows] == texts
    assert [row.fields["first"] for row in rows[:3]] == ['["x"]', "x;y", '[1, "z"]']


def _types(values: Sequence[Any]) -> str:
    kind = None
    for value in values:
        kind = joined(kind, kind_of(value))
    return sql_type(kind)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([None], "VARCHAR"),
        ([1, None, -(2**63) + 1], "BIGINT"),
        ([1, 2**64], "HUGEINT"),
        ([2**64, 0.5], "DOUBLE"),
        ([2**200, 1], "VARCHAR"),
        ([True, 1], "VARCHAR"),
        (["2020-01-01"], "VARCHAR"),
        ([[], [1], [0.5]], "DOUBLE[]"),
        ([[1], 1], "VARCHAR"),
        ([{"a": 1}, {"b": ["x"]}], 'STRUCT("a" BIGINT, "b" VARCHAR[])'),
        ([[{"a b": None}]], 'STRUCT("a b" VARCHAR)[]'),
        ([{}], "MAP(VARCHAR, VARCHAR)"),
        ([{"a": 1}, {"A": 0.5}], "MAP(VARCHAR, DOUBLE)"),
        ([{"": 1}, {"a": [1]}], "MAP(VARCHAR, VARCHAR)"),
        ([{f"key {n}": [n]} for n in range(300)], "MAP(VARCHAR, BIGINT[])"),
    ],
)
def test_one_type_holds_all_values(values: list[Any], wanted: str) -> None:
    assert _types(values) == wanted
    assert sorted(_types(values[::-1])) == sorted(wanted)  # fields are in the order of the file


def test_records_that_an_expression_does_not_fit_are_named_or_left_out(tmp_path: Path) -> None:
    rows = [{"id": n, "title": "x" if n % 700 == 3 else str(n)} for n in range(2500)]
    path = written(tmp_path, "a.jsonl", lines(*rows))
    names = {"id": "id", "number": "CAST(title AS INTEGER)"}
    with pytest.raises(DataError, match=r"a.jsonl:4: record does not fit .*'x' to INT32") as raised:
        _read(path, names)
    assert "\n" not in str(raised.value)
    rejects = Rejects(skip_bad=True)
    kept = _read(path, names, rejects)
    assert [row.fields["number"] for row in kept] == [n for n in range(2500) if n % 700 != 3]
    assert sum(rejects.counts.values()) == 4
    surrogate = written(tmp_path, "b.jsonl", lines({"id": 1, "title": "\ud800"}))
    with pytest.raises(DataError, match=r"b.jsonl:1: record does not fit"):
        _read(surrogate, {"id": "id", "title": "upper(title)"})


def test_unnested_rows_have_the_line_of_their_record(tmp_path: Path) -> None:
    rows = [{"id": n, "refs": list(range(n % 7))} for n in range(1200)]
    found = _read(written(tmp_path, "a.jsonl", lines(*rows)), {"id": "id", "cited": "unnest(refs)"})
    wanted = [(n + 1, n, m) for n in range(1200) for m in range(n % 7)]
    assert [(row.line, row.fields["id"], row.fields["cited"]) for row in found] == wanted


def test_window_functions_see_all_rows_of_a_file(tmp_path: Path) -> None:
    rows = [{"id": str(n)} for n in range(2500)]
    path = written(tmp_path, "a.jsonl", lines(*rows))
    found = _read(path, {"id": "id", "n": "row_number() OVER (ORDER BY CAST(id AS INT) DESC)"})
    assert [row.fields["n"] for row in found] == list(range(2500, 0, -1))
    with pytest.raises(DataError, match=r"a.jsonl: columns do not fit .*Could not convert"):
        _read(path, {"id": "id", "n": "sum(CAST(concat(id, 'x') AS INT)) OVER ()"})


def test_expressions_read_what_our_own_readers_unpack(tmp_path: Path) -> None:
    text = lines({"id": "1", "title": "A"})
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(text.encode()))
    (paper,) = read(tmp_path / "a.jsonl.bz2", columns={"title": "lower('A') || id"})
    assert paper.title == "a1"


@pytest.mark.usefixtures("in_los_angeles")
def test_a_moment_has_the_same_year_on_all_machines(tmp_path: Path) -> None:
    """DuckDB takes this machine's time zone (duckdb/duckdb#15192), where it is still 2019."""
    moments = pa.array([datetime(2020, 1, 1, 0, 30)], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"title": ["A"], "seen": moments}), tmp_path / "a.parquet")
    for year in ("seen", "year(seen)", "strftime(seen, '%Y')"):
        (paper,) = read(tmp_path / "a.parquet", columns={"year": year})
        assert paper.year == 2020


def test_an_expression_that_fits_no_file_names_the_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "id,title\n1,A\n")
    message = r"a.csv: columns do not fit the file: .*titel.*Fix: correct .* there are id, title"
    with pytest.raises(DataError, match=message):
        _read(path, {"id": "id", "title": "upper(titel)"})
    # DuckDB adds some forty functions of the name.
    with pytest.raises(DataError, match=r"VARCHAR\)'. You .* type casts. \(value: .2 \+ id.\)"):
        _read(path, {"id": "id", "title": "2 + id"})
