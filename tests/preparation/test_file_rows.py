"""Files as rows: SQL reads a file as Python does, record by record."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scimult.data.importers.engine import connected
from scimult.data.packed import _checks_gzip, is_whole
from scimult.data.records import Rejects
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError, DataError
from scimult.preparation.collect import collect
from scimult.preparation.file_rows import FileEngine, FileRows
from scimult.preparation.mining.engine import Limits
from scimult.preparation.pair_rows import answer_rows, edge_rows
from scimult.preparation.source_texts import text_rows
from scimult.types import Kind
from tests.raw_corpus import raw_config, write_jsonl, write_tsv

SETTINGS = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Ends, spaces and escapes that SQL and Python might see differently.
TEXT = st.text(st.sampled_from('a é"\\\t\n\r\x00\x1c\x85\u2003\u3000文😀{},:'), max_size=6)
VALUE = st.one_of(
    TEXT,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.lists(st.one_of(TEXT, st.integers(), st.none()), max_size=3),
    st.sampled_from(["\ud800", "-0", "007", " x", {"a": [1]}]),
)
PLAIN = {"id": "1", "title": "T", "abstract": "A", "text": "Q", "name": "N"}
FIELDS = ("id", "title", "abstract", "authors", "venue", "year", "labels", "doi", "text", "name")
FIELDS += ("abstract_inverted_index",)


class _LeftToPythonError(Exception):
    pass


@pytest.fixture(scope="module")
def engine() -> Iterator[FileEngine]:
    with connected() as connection:
        yield FileEngine(connection)


def rows_by(engine: FileEngine, rows: FileRows, rejects: Rejects) -> list[Any]:
    engine.read("CREATE OR REPLACE TABLE found AS {rows}", rows, rejects)
    found = engine.connection.execute("FROM found")
    names = [name for name, *_ in found.description or ()]
    return [
        {name: _plain(name, value) for name, value in zip(names, row, strict=True)}
        for row in found.fetchall()
    ]


def _plain(name: str, value: Any) -> Any:
    """Return a value, with targets parsed from JSON, since spaces in it do not matter."""
    return [json.loads(one or "null") for one in value] if name == "targets" else value


def by_sql(engine: FileEngine, rows: FileRows) -> list[Any] | None:
    """Return the rows that SQL reads; ``None`` if it leaves the file to Python."""

    def left(_: Rejects) -> Any:
        raise _LeftToPythonError

    try:
        return rows_by(engine, replace(rows, records=left), Rejects())
    except _LeftToPythonError:
        return None


def by_python(engine: FileEngine, rows: FileRows) -> list[Any]:
    return rows_by(engine, replace(rows, sql=None), Rejects(skip_bad=True))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["paper", "label", "query"])
@SETTINGS
@given(
    records=st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUE), min_size=1, max_size=3),
    is_ascii=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\n \n\n"]),
)
@example(records=[{"labels": [" a", "b\u3000"]}], is_ascii=False, end="\n")
def test_sql_reads_json_as_python_does_or_leaves_it(
    engine: FileEngine, tmp_path: Path, kind: Kind, records: list[Any], is_ascii: bool, end: str
) -> None:
    path = tmp_path / "texts.jsonl"
    lines = (json.dumps({**PLAIN, **record}, ensure_ascii=is_ascii) for record in records)
    path.write_bytes("".join(line + end for line in lines).encode("utf-8", "surrogatepass"))
    rows = text_rows(path, kind, ["venue"] if kind == "paper" else ())
    found = by_sql(engine, rows)
    if found is not None:
        assert found == by_python(engine, rows)


@pytest.mark.long
@SETTINGS
@given(
    cells=st.lists(
        st.tuples(*[st.one_of(TEXT, st.sampled_from(["1", "0", "2e-3", "nan", " 1", "1_0"]))] * 5),
        min_size=1,
        max_size=3,
    ),
    name=st.sampled_from(["a.tsv", "a.csv"]),
)
def test_sql_reads_tables_as_python_does_or_leaves_them(
    engine: FileEngine, tmp_path: Path, cells: list[tuple[str, ...]], name: str
) -> None:
    path = tmp_path / name
    separator = "," if name == "a.csv" else "\t"
    header = separator.join(["query-id", "corpus-id", "score", "teacher", "negative-id"])
    text = "".join(f"{separator.join(row)}\n" for row in [(header,), *cells])
    path.write_bytes(text.encode("utf-8"))
    for kind in ("judgments", "positives"):
        rows = answer_rows(path, kind, 0.5)
        found = by_sql(engine, rows)
        if found is not None:
            assert found == by_python(engine, rows)


def test_plainly_valid_rows_are_read_by_sql(engine: FileEngine, root: Path) -> None:
    files = [
        text_rows(root / "papers.jsonl", "paper"),
        text_rows(root / "labels.jsonl", "label"),
        text_rows(root / "queries.jsonl", "query"),
        edge_rows(root / "citations.tsv"),
        answer_rows(root / "clicks.tsv", "clicks", 1.0),
    ]
    for rows in files:
        found = by_sql(engine, rows)
        assert found
        assert found == by_python(engine, rows)


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    ("kind", "column", "cells", "positive"),
    [
        ("positives", "score", ["", "2", "0.5", "0.4"], [True, True, True, False]),
        ("positives", "clicked", ["", "1", "0"], [True, True, False]),
        ("judgments", "score", ["2", "0.5", ".4", "-1"], [True, True, False, False]),
        ("links", "score", ["1e0", "0.49"], [True, False]),
        ("clicks", "clicked", ["1", "0"], [True, False]),
    ],
)
def test_what_is_an_answer(
    engine: FileEngine,
    tmp_path: Path,
    kind: str,
    column: str,
    cells: list[str],
    positive: list[bool],
    space: str,
) -> None:
    """From the threshold of 0.5 on; a number after a space is left to Python."""
    header = ("query-id", "paper-id", column, "teacher", "negative-id")
    rows = [(f"q{n}", "p", cell, f"{space}0.25", f"n{n}") for n, cell in enumerate(cells)]
    write_tsv(tmp_path / "answers.tsv", header, [*rows, ("q", "p", cells[0], "", " ")])
    read = answer_rows(tmp_path / "answers.tsv", kind, 0.5)
    assert (by_sql(engine, read) is None) == bool(space)
    found = rows_by(engine, read, Rejects())
    assert [(row["query"], row["positive"], row["teacher"], row["negative"]) for row in found] == [
        *((f"q{n}", is_positive, 0.25, f"n{n}") for n, is_positive in enumerate(positive)),
        ("q", positive[0], None, ""),
    ]


@pytest.mark.parametrize(
    "content", ["", "\n\n", '[{"id": 1, "text": "a"}]', '{"id": 1,\n"text": 2}']
)
def test_other_than_json_lines_is_left_to_python(
    engine: FileEngine, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(content)
    assert not by_sql(engine, text_rows(path, "query"))


@pytest.mark.long
@pytest.mark.parametrize("longest", [3_000_000, 9_000_000])
def test_long_lines_and_a_mark_of_byte_order(
    engine: FileEngine, tmp_path: Path, longest: int
) -> None:
    path = tmp_path / "queries.jsonl"
    texts = ["a" * longest, "b", "c" * (longest // 2)]
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    rows = text_rows(path, "query")
    assert (by_sql(engine, rows) is None) == (longest > 4_000_000)
    found = rows_by(engine, rows, Rejects())
    assert [(row["line"], row["id"], row["title"]) for row in found] == [
        (i + 1, str(i), text) for i, text in enumerate(texts)
    ]


def test_memory_that_does_not_suffice_is_said(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(f'{{"id": {i}, "text": "q"}}\n' for i in range(200_000)))
    with (
        pytest.raises(ConfigError, match=r"1MB.*Fix: raise --memory"),
        connected(tmp_path, "1MB") as connection,
    ):
        rows_by(FileEngine(connection), text_rows(path, "query"), Rejects())
    with pytest.raises(ConfigError, match="write it as 4GB"), connected(tmp_path, "much"):
        pass


@pytest.mark.parametrize("shift", range(3))
def test_a_broken_line_in_another_script_is_named(
    engine: FileEngine, tmp_path: Path, shift: int
) -> None:
    """DuckDB quotes 134 bytes of it, which may end inside a letter."""
    path = tmp_path / "queries.jsonl"
    line = '{"id": 2, "text": "' + "a" * shift + '文"x' * 200
    path.write_text(f'{{"id": 1, "text": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"queries\.jsonl:2: line is not valid JSON"):
        rows_by(engine, text_rows(path, "query"), Rejects())


def test_the_error_of_a_bad_row_comes_as_it_is(engine: FileEngine, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n{"id": 2}\n')
    with pytest.raises(DataError, match=r"queries\.jsonl:2: missing field 'text'"):
        rows_by(engine, text_rows(path, "query"), Rejects())


@pytest.mark.parametrize(
    ("version", "notices"), [("1.4.0", False), ("1.5.6", False), ("2.0.0", True)]
)
def test_a_version_that_reads_cut_off_gzip_files_in_silence_gets_none(
    tmp_path: Path, version: str, notices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those versions had 998 of 2,000 rows of such a file; from 2.0 on, it is an error."""
    path = tmp_path / "papers.jsonl.gz"
    packed = gzip.compress(b'{"id": 1}\n' * 1000)
    monkeypatch.setattr(duckdb, "__version__", version)
    _checks_gzip.cache_clear()
    path.write_bytes(packed)
    assert is_whole(path)
    path.write_bytes(packed[:-4])
    assert is_whole(path) == notices
    _checks_gzip.cache_clear()


@pytest.mark.parametrize(("ending", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_compressed_file_that_is_cut_off_is_reported(
    engine: FileEngine, tmp_path: Path, ending: str, codec: str
) -> None:
    """Within its last value, where what is left looks whole."""
    path = tmp_path / f"citations.tsv{ending}"
    digits = random.Random(0).choices("0123456789", k=1_000_000)
    ids = ["".join(digits[start : start + 500]) for start in range(0, len(digits), 500)]
    text = "".join(f"{line}\n" for line in ["citing\tcited", *(f"1\t{one}" for one in ids)])
    packed = pa.compress(text.encode(), codec, asbytes=True)
    path.write_bytes(packed)
    assert len(rows_by(engine, edge_rows(path), Rejects())) == len(ids)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"citations.*compressed file is cut off or damaged"):
        rows_by(engine, edge_rows(path), Rejects())


@pytest.mark.long
def test_what_is_written_depends_neither_on_memory_nor_on_threads(tmp_path: Path) -> None:
    """Lines of files with several blocks, read by several threads, stay in order."""
    count = 30_000
    ids = [f"p{(place * 7919) % count}" for place in range(count)]
    papers = (
        {"id": id_, "title": "T", "abstract": "x" * 300, "authors": [f"A{len(id_)}", id_[:3]]}
        for id_ in ids
    )
    write_jsonl(tmp_path / "papers.jsonl", papers)
    edges = [(ids[place], ids[place * place % count]) for place in range(2, count)]
    write_tsv(tmp_path / "citations.tsv", ("citing", "cited"), [e for e in edges if e[0] != e[1]])
    source = {"name": "many", "papers": "papers.jsonl", "citations": "citations.tsv"}
    config = raw_config(tmp_path, sources=[source])
    written = []
    for limits in (Limits(threads=1, memory="100MB"), Limits(threads=4)):
        folder = tmp_path / str(limits.threads)
        folder.mkdir()
        collect(config, folder, limits=limits)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    store = TextStore.open(folder)
    assert store.ids == [f"many:{id_}" for id_ in ids]
    row = {id_: place for place, id_ in enumerate(ids)}
    expected = sorted({(row[a], row[b]) for a, b in edges if a != b})
    table = pa.ipc.open_file(pa.memory_map(str(folder / "citations.arrow"))).read_all()
    columns = (table.column(name).to_pylist() for name in ("citing", "cited"))
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("abstract", ["", " ", None, "x"])
@pytest.mark.parametrize("index", [None, {}, {"a": [0], "b": [1]}])
def test_an_inverted_index_stands_in_for_a_blank_abstract(
    engine: FileEngine, tmp_path: Path, abstract: str | None, index: dict[str, list[int]] | None
) -> None:
    path = tmp_path / "papers.jsonl"
    write_jsonl(path, [{**PLAIN, "abstract": abstract, "abstract_inverted_index": index}])
    (row,) = rows_by(engine, text_rows(path, "paper"), Rejects())
    assert row["body"].strip() == ("x" if abstract == "x" else "a b" if index else "")
