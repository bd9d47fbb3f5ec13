"""Input files: every defect is located, or skipped and counted on request."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_rows
from scimult.data.tables import FIELD_LIMIT, read_table
from scimult.errors import DataError

GOOD = b'{"id": "a", "n": 1}\n'


def _read(path: Path, rejects: Rejects) -> list[Record]:
    if ".jsonl" in path.name:
        return list(read_jsonl(path, rejects))
    return list(read_table(path, ("x", "y"), rejects))


@pytest.mark.parametrize(
    ("name", "content", "line", "problem"),
    [
        ("f.jsonl", GOOD + b'{"id": "b", "ti\n' + GOOD, 2, "line is not valid JSON"),
        ("f.jsonl", GOOD + b'{"id": "caf\xe9"}\n' + GOOD, 2, "line is not UTF-8"),
        ("f.jsonl", GOOD + b"[1, 2]\n" + GOOD, 2, "line is not an object"),
        ("f.jsonl", GOOD + b"[" * 100_000 + b"\n" + GOOD, 2, "line is not valid JSON"),
        ("f.jsonl", GOOD + b'{"n": ' + b"9" * 5000 + b"}\n" + GOOD, 2, "line is not valid JSON"),
        ("f.tsv", b"x\ty\n1\t2\n3\n4\t5\n", 3, "wrong number of values"),
        ("f.csv", b"x,y\n1,2\n3,4,5\n6,7\n", 3, "wrong number of values"),
    ],
)
def test_a_bad_line_is_located_or_skipped(
    tmp_path: Path, name: str, content: bytes, line: int, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        _read(path, Rejects())
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "value: " in str(caught.value)
    assert "Fix: " in str(caught.value)

    rejects = Rejects(skip_bad=True)
    assert len(_read(path, rejects)) == 2
    ((reason, count),) = rejects.counts.items()
    assert reason.startswith(problem)
    assert count == 1
    assert f"{path}:{line}" in rejects.summary()


@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_value_that_is_too_long_for_csv(tmp_path: Path, quote: bytes) -> None:
    path = tmp_path / "f.csv"
    value = quote + b"9" * (FIELD_LIMIT + 1) + quote
    path.write_bytes(b"x,y\n1,2\n3," + value + b"\n6," + b"7" * 200_000)
    with pytest.raises(DataError, match=r"f.csv:3: line is not CSV: field larger.*Fix: "):
        _read(path, Rejects())
    rejects = Rejects(skip_bad=True)
    assert [len(record.fields["y"]) for record in _read(path, rejects)] == [1, 200_000]
    assert sum(rejects.counts.values()) == 1


@pytest.mark.parametrize("name", ["f.jsonl", "f.tsv", "f.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"file is empty.*Fix: "):
        _read(path, Rejects())
    rejects = Rejects(skip_bad=True)
    assert _read(path, rejects) == []
    assert rejects.counts == {"file is empty": 1}


@pytest.mark.parametrize("keep", [30, 400])
def test_a_truncated_gzip(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "f.jsonl.gz"
    rows = "".join(json.dumps({"id": hash(i * 7919)}) + "\n" for i in range(300))
    path.write_bytes(gzip.compress(rows.encode())[:keep])
    with pytest.raises(DataError, match=r"f\.jsonl\.gz:\d+: compressed file is cut off.*Fix: copy"):
        _read(path, Rejects())
    rejects = Rejects(skip_bad=True)
    assert len(_read(path, rejects)) < 300
    assert rejects.counts["compressed file is cut off or damaged"] == 1


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("name", PACK)
def test_compressed_streams_may_follow_each_other(tmp_path: Path, name: str) -> None:
    path, pack = tmp_path / f"f.jsonl.{name}", PACK[name]
    texts = [b"".join(b'{"id": %d}\n' % (1000 * k + i) for i in range(1000)) for k in range(3)]
    padding = b"" if name == "zst" else bytes(8)
    packed = [pack(b""), *map(pack, texts[:2]), padding, pack(b""), pack(texts[2]), padding]
    path.write_bytes(b"".join(packed))
    assert [record.fields["id"] for record in read_jsonl(path, Rejects())] == list(range(3000))
    for damage in (b"\xff" + packed[-2][1:], packed[-2][:3], b"no stream"):
        path.write_bytes(b"".join([*packed[:-2], damage]))
        rejects = Rejects(skip_bad=True)
        assert len(list(read_jsonl(path, rejects))) <= 2000
        assert "compressed file is cut off or damaged" in rejects.counts


@pytest.mark.parametrize("name", PACK)
def test_other_compressed_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"f.jsonl.{name}"
    packed = PACK[name](b'{"id": 1}\n{"id": 2}\n')
    path.write_bytes(packed)
    assert [record.fields["id"] for record in read_jsonl(path, Rejects())] == [1, 2]
    assert list(read_rows(path, Rejects())) == list(read_jsonl(path, Rejects()))
    path.write_bytes(packed[:-9])
    with pytest.raises(DataError, match=r":\d+: compressed file is cut off"):
        list(read_jsonl(path, Rejects()))
    other = tmp_path / "f.jsonl"
    other.write_bytes(packed)
    with pytest.raises(DataError, match=f"Fix: end its name in .{name}"):
        list(read_jsonl(other, Rejects()))


def test_a_file_that_is_no_gzip(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(GOOD)
    with pytest.raises(DataError, match="cut off or damaged"):
        _read(path, Rejects())


def test_a_missing_file_or_column_cannot_be_skipped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file does not exist"):
        _read(tmp_path / "f.jsonl", Rejects(skip_bad=True))
    (tmp_path / "f.tsv").write_text("x\tz\n1\t2\n")
    with pytest.raises(DataError, match=r"f\.tsv:1: file lacks the column y.*\['x', 'z'\].*Fix"):
        _read(tmp_path / "f.tsv", Rejects(skip_bad=True))
    with pytest.raises(DataError, match="cannot be read"):
        _read(tmp_path, Rejects(skip_bad=True))


def test_tables_take_alternative_names_quotes_and_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('q,corpus-id,note\n1,"a, b",x\n\n2,c,y\n', encoding="utf-8-sig")
    records = list(read_table(path, ("q", "paper-id|corpus-id"), Rejects()))
    assert [record.fields for record in records] == [
        {"q": "1", "paper-id": "a, b", "note": "x"},
        {"q": "2", "paper-id": "c", "note": "y"},
    ]
    assert [record.line for record in records] == [2, 4]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("f.tsv", 'id\tt\n1\t"Deep" nets\n2\tB\n', [(2, '"Deep" nets'), (3, "B")]),
        ("f.tsv", 'id\tt\n1\t"Deep\n2\tB\n3\t"C"\n', [(2, '"Deep'), (3, "B"), (4, "C")]),
        ("f.tsv", 'id\tt\n1\t"a\tb"\n2\t"c\nd ""e"""\n', [(2, "a\tb"), (3, 'c\nd "e"')]),
        ("f.tsv", 'id\tt\n1\t"Deep\n2\tB', [(2, '"Deep'), (3, "B")]),
        ("f.csv", 'id,t\n1,"a\nb"\n2,"Deep" nets\n', [(2, "a\nb"), (4, "Deep nets")]),
    ],
)
def test_quotes_swallow_no_row(
    tmp_path: Path, name: str, content: str, rows: list[tuple[int, str]]
) -> None:
    (tmp_path / name).write_text(content)
    found = read_rows(tmp_path / name, Rejects())
    assert [(record.line, record.fields["t"]) for record in found] == rows


def test_an_unclosed_quote_in_csv_is_named_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text('id,t\n1,A\n2,"B\n3,C\n4,D\n')
    with pytest.raises(DataError, match=r"f\.csv:3: line is not CSV: .*Fix: close its quote"):
        list(read_rows(tmp_path / "f.csv", Rejects()))
    rejects = Rejects(skip_bad=True)
    assert [row.fields["id"] for row in read_rows(tmp_path / "f.csv", rejects)] == ["1", "3", "4"]
    assert sum(rejects.counts.values()) == 1


def test_a_missing_column_is_suggested_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("Id,Title\n1,A\n")
    with pytest.raises(DataError, match=r"lacks the column id.*did you mean 'Id'\?"):
        list(read_rows(tmp_path / "f.csv", Rejects(), columns=["id"]))


@pytest.mark.parametrize(
    ("name", "mark", "fix"),
    [
        ("f.csv", "\t", "tabs: end its name in .tsv"),
        ("f.tsv", ",", "commas: end its name in .csv"),
        ("f.csv", ";", "semicolons: separate them by commas"),
    ],
)
def test_a_header_with_other_marks_says_so(tmp_path: Path, name: str, mark: str, fix: str) -> None:
    """The fix was "did you mean 'citing\\tcited'?"."""
    (tmp_path / name).write_text(f"citing{mark}cited\np1{mark}p2\n")
    with pytest.raises(DataError, match=rf"lacks the .*Fix: its values are separated by {fix}"):
        list(read_table(tmp_path / name, ("citing", "cited"), Rejects()))


def test_unusual_line_ends_stay_inside_a_value(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes('{"id": "a\u2028b\x85"}\r\n{"id": "c"}'.encode())
    assert [r.fields["id"] for r in read_jsonl(path, Rejects())] == ["a\u2028b\x85", "c"]


def _record(**fields: object) -> Record:
    return Record(Path("f.jsonl"), 7, dict(fields))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: _record(a=1).text("a"), "field 'a' is not a string"),
        (lambda: _record(a=None).text("a"), "field 'a' is null"),
        (lambda: _record(a=[True]).identifiers("a"), "field 'a' is not a list of strings"),
        (lambda: _record(a="1").identifiers("a"), "field 'a' is not a list of strings"),
        (lambda: _record(b="x").text("a"), "missing field 'a'"),
        (lambda: _record(a="\ud800").text("a"), "field 'a' is not valid Unicode"),
        (lambda: _record(a=" ").identifier("a"), "field 'a' is empty"),
        (lambda: _record(a=True).identifier("a"), "field 'a' is not a string"),
        (lambda: _record(a="x").strings("a"), "field 'a' is not a list of strings"),
        (lambda: _record(a=["x", 1]).strings("a"), "field 'a' is not a list of strings"),
        (lambda: _record(a="1.5").integer("a"), "field 'a' is not an integer"),
        (lambda: _record(a=True).integer("a"), "field 'a' is not an integer"),
        (lambda: _record(a="nan").number("a"), "field 'a' is not a finite number"),
        (lambda: _record(a=[]).number("a"), "field 'a' is not a finite number"),
        (lambda: _record(a=False).number("a"), "field 'a' is not a finite number"),
    ],
)
def test_typed_access_names_the_field(call: object, problem: str) -> None:
    with pytest.raises(DataError, match=rf"^f\.jsonl:7: {problem}.*Fix: "):
        call()  # type: ignore[operator]


def test_typed_access_returns_values_and_defaults() -> None:
    record = _record(a="x", n=3, s=["u", "v"], f="2.5", empty="")
    assert record.text("a") == "x"
    assert record.text("empty", "default") == ""
    assert record.text("none", "default") == "default"
    assert record.identifier("n") == "3"
    assert record.strings("s") == ["u", "v"]
    assert record.strings("none", ()) == []
    assert (record.integer("n"), record.integer("none", 4)) == (3, 4)
    assert (record.number("f"), record.number("n")) == (2.5, 3.0)


def test_every_reject_is_logged_but_only_some_are_shown(tmp_path: Path) -> None:
    rejects = Rejects(skip_bad=True, log=tmp_path / "rejects.jsonl")
    records = [Record(Path("f"), i, {"id": i}) for i in range(10)]
    assert list(rejects.keep(records, lambda record: record.text("id"))) == []
    logged = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in logged] == list(range(10))
    assert logged[3] == {
        "reason": "field 'id' is not a string",
        "file": "f",
        "line": 3,
        "value": "3",
    }
    assert "left out 10: field 'id' is not a string" in rejects.summary()
    assert rejects.summary().count("e.g.") == 3


@pytest.mark.parametrize("value", [10**30, -(10**30), str(10**30), 2**63])
def test_integers_are_of_64_bits(tmp_path: Path, value: object) -> None:
    """Years and grades go into arrays: values that do not fit are located."""
    record = Record(tmp_path / "f", 7, {"n": value})
    with pytest.raises(DataError, match=r"f:7: field 'n' is not a 64-bit integer.*Fix: "):
        record.integer("n")
    assert Record(tmp_path / "f", 7, {"n": -(2**63)}).integer("n") == -(2**63)


def test_a_number_beyond_all_floats(tmp_path: Path) -> None:
    record = Record(tmp_path / "f", 7, {"n": 10**400})
    with pytest.raises(DataError, match="is not a finite number"):
        record.number("n")


def test_whole_numbers_are_ids_alone_and_in_lists(tmp_path: Path) -> None:
    """As arrays and frames give them: a column with a missing value holds 12.0."""
    record = Record(tmp_path / "f", 1, {"one": 12.0, "several": [1, 2.0, "3"]})
    assert (record.identifier("one"), record.identifiers("several")) == ("12", ["1", "2", "3"])
    for values in ([1.5], [True], [1e300]):
        with pytest.raises(DataError, match="is not a list of strings"):
            Record(tmp_path / "f", 1, {"bad": values}).identifiers("bad")
