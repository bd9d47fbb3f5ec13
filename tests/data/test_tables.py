"""Delimited tables against the csv module, and against lines of arbitrary quotes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scimult.data.records import Record, Rejects
from scimult.data.tables import read_delimited
from scimult.errors import DataError

VALUES = st.text(alphabet="ab\"'; ,\t\né", max_size=8)
LINES = st.lists(st.text(alphabet='"x, ', max_size=8), max_size=6)


@contextmanager
def written(content: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "table")
        path.write_text(content, encoding="utf-8", newline="")
        yield path


def read(path: Path, delimiter: str, rejects: Rejects) -> list[Record]:
    return list(read_delimited(path, delimiter, rejects))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1))
def test_what_the_csv_module_wrote_is_read_as_it_reads_it(rows: list[tuple[str, str]]) -> None:
    with written("") as path:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("a", "b"), *rows])
        with path.open(encoding="utf-8", newline="") as file:
            theirs = list(csv.reader(file))[1:]
        ours = read(path, ",", Rejects())
    assert [[row.fields["a"], row.fields["b"]] for row in ours] == theirs == list(map(list, rows))


@example(['xx""', '" ', " ,", '","', ' """""" x', '""""x""'], ",")
@example(['"', '""""', 'xx"\t"""\t', "xx"], "\t")
@given(LINES, st.sampled_from(",\t"))
def test_a_bad_line_takes_no_other_with_it(lines: list[str], delimiter: str) -> None:
    """Each line is part of one row or one refusal, in order."""
    lines = ["a,b", *lines]
    content = "".join(f"{line}\n" for line in lines).replace(",", delimiter)
    rejects = Rejects(skip_bad=True)
    with written(content) as path:
        found = read(path, delimiter, rejects)
    numbers = [row.line for row in found]
    assert numbers == sorted(set(numbers))
    if delimiter == "\t":
        plain = {
            number
            for number, line in enumerate(lines, 1)
            if line.count(",") == 1 and '"' not in line and line.strip(", ")
        }
        assert plain - {1} <= set(numbers)


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_lines_read_again_keep_their_order(delimiter: str) -> None:
    content = 'a,b\n1,"A\n2,B\n3,"C\n4,D\n'.replace(",", delimiter)
    with written(content) as path:
        rows = [(row.line, row.fields["a"]) for row in read(path, delimiter, Rejects(True))]
    # In CSV an unclosed quote is refused; in TSV it is text.
    expected = [(2, "1"), (3, "2"), (4, "3"), (5, "4")]
    assert rows == (expected[1::2] if delimiter == "," else expected)


def test_a_quote_that_is_open_at_the_end_is_refused() -> None:
    """In the last line it was read, with a line end, as if the file were not cut off."""
    with (
        written('a,b\n1,B\n2,"A') as path,
        pytest.raises(DataError, match=r"table:3: .*end of data"),
    ):
        read(path, ",", Rejects())


def test_a_record_in_the_place_of_the_header_is_cut() -> None:
    cut = pytest.raises(DataError, match=r"write 2 values \(1, A word\.")
    with written('1,"' + "A word.\n" * 900 + '"\n2\n') as path, cut as caught:
        read(path, ",", Rejects())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800
