"""Lists that are written as one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scimult.data.importers import read_papers
from scimult.data.importers.paper import make_paper
from scimult.data.lines import Record

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
    ("text", "items"),
    [
        ('["a", "\\ud83d\\ude00"]', ["a", "\U0001f600"]),
        ("[1, 007]", ["1", "007"]),
        (r"['\xi']", [r"\xi"]),
        ("[Fe/H]; b", ["[Fe/H]", "b"]),
        ("['a' 'b' ... 'z']", ["['a' 'b' ... 'z']"]),
        ("[1] b; c", ["[1] b", "c"]),
    ],
)
def test_a_text_is_a_list_only_if_all_of_it_is(text: str, items: list[str]) -> None:
    record = Record(Path("p"), 1, {"id": "1", "title": "T", "labels": text})
    assert make_paper(record).labels == items
