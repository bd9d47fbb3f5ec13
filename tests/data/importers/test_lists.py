"""Lists that are written as one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scimult.data.importers import read_papers
from scimult.data.importers.paper import make_paper
from scimult.data.records import Record

LISTS = [["a;b", "it's", 'say "x"'], ["caf\u00e9", "no\xa0break", "\\xi"], ["2401.1", "[Fe/H]"], []]


@pytest.mark.parametrize("kind", [list, np.array])
def test_lists_in_csv_as_pandas_writes_them(tmp_path: Path, kind: Any) -> None:
    frame = pd.DataFrame({"id": range(len(LISTS)), "title": "T"})
    for column in ("authors", "keywords"):
        frame[column] = [kind(names) for names in LISTS]
    frame.to_csv(tmp_path / "p.csv")
    papers = list(read_papers([tmp_path / "p.csv"]))
    expected = [[" ".join(name.split()) for name in names] for names in LISTS]
    assert [paper.labels for paper in papers] == expected
    assert [paper.authors for paper in papers] == expected


@pytest.mark.parametrize(
    ("columns", "values", "authors"),
    [
        ("Authors,Author(s) ID", '"Doe J., van der Roe K.","57;58;"', ["Doe J.", "van der Roe K."]),
        (
            "Authors,Author full names,Author(s) ID",
            '"Doe, J.; Roe, K.","Doe, Jane (57204001122); Roe, Karl (57204001123)","57;58"',
            ["Jane Doe", "Karl Roe"],
        ),
    ],
)
def test_authors_of_scopus_before_and_since_2023(
    tmp_path: Path, columns: str, values: str, authors: list[str]
) -> None:
    file = tmp_path / "scopus.csv"
    file.write_text(f"{columns},Title,EID\n{values},A,2-s2.0-1\n", encoding="utf-8")
    (paper,) = read_papers([file])
    assert paper.authors == authors


def test_authors_and_venue_of_publish_or_perish(tmp_path: Path) -> None:
    """All authors were one person; Google Scholar cuts long lists."""
    file = tmp_path / "PoPCites.csv"
    names = "Cites,Authors,Title,Year,Source,Publisher,ArticleURL,CitesURL,GSRank,QueryDate"
    rows = ['5,"J Doe, K van der Roe",A,2016,A Journal,,,,1,2016-12-21', '0,"J Doe, ...",B,,,,,,2,']
    file.write_text("\n".join([names, *rows, ""]), encoding="utf-8-sig")
    first, second = read_papers([file])
    assert (first.authors, first.venue, first.year) == (
        ["J Doe", "K van der Roe"],
        "A Journal",
        2016,
    )
    assert (second.authors, second.venue) == (["J Doe"], "")


@pytest.mark.parametrize(
    ("own", "database"),
    [
        ("Author Keywords", "Keywords Plus"),
        ("Author Keywords", "Index Keywords"),
        ("Manual Tags", "Automatic Tags"),
    ],
)
def test_keywords_of_a_database_are_labels_where_there_are_no_others(
    tmp_path: Path, own: str, database: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"Title,{own},{database}\nA,x; y,z\nB,,z; w\n", encoding="utf-8")
    assert [paper.labels for paper in read_papers([file])] == [["x", "y"], ["z", "w"]]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "\\ud83d\\ude00"]', ["a", "\U0001f600"]),
        ("[1, 007]", ["1", "007"]),
        (r"['\xi']", [r"\xi"]),
        (r"['$\alpha$', '$\nu$']", [r"$\alpha$", r"$\nu$"]),
        (r"""["\beta's", '\\alpha', 'a\xa0b']""", [r"\beta's", r"\\alpha", r"a\xa0b"]),
        ("[Fe/H]; b", ["[Fe/H]", "b"]),
        ("['a' 'b' ... 'z']", ["['a' 'b' ... 'z']"]),
        ("[1] b; c", ["[1] b", "c"]),
    ],
)
def test_a_text_is_a_list_only_if_all_of_it_is(text: str, items: list[str]) -> None:
    record = Record(Path("p"), 1, {"id": "1", "title": "T", "labels": text})
    assert make_paper(record).labels == items
