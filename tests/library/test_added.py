"""What a library takes as papers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scimult.data.importers import read_papers
from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError
from scimult.library import Library
from scimult.library.records import read_files
from tests.library.conftest import contents, dated, paper

Make = Callable[..., Library]


def test_bad_papers_are_refused_and_nothing_is_lost(make: Make) -> None:
    library = make(dated(5))
    with pytest.raises(DataError, match="id is given twice.*p007"):
        library.add([paper(7), paper(7, 1)])
    with pytest.raises(DataError, match=r"p008.*'year' holds whole numbers, this is text.*Fix:"):
        library.add([paper(8, year="soon")])
    with pytest.raises(DataError, match=r"'year' holds whole numbers, this is numbers.*1e\+300"):
        library.add([paper(8, year=1e300)])
    with pytest.raises(DataError, match=r"column name is taken.*'Row'"):
        library.add([paper(8, Row=3)])
    with pytest.raises(DataError, match="sync would empty the library"):
        library.sync([])
    with pytest.raises(DataError, match="paper 'p008': a field's name is no string"):
        library.add([{**paper(8), 3: "x"}])
    with pytest.raises(DataError, match="column 'note' holds unpaired surrogates"):
        library.add([paper(8, note="\udcff")])
    with pytest.raises(DataError, match="paper 0 has no id"):
        library.add([{"title": "x"}])
    with pytest.raises(ConfigError, match="ids is a string"):
        library.remove("p001")
    with pytest.raises(DataError, match="text under 'titel'"):
        library.add([{"id": "x", "titel": "x", "abstract": "y"}])
    assert len(library) == 5
    assert library.check() == []
    assert library.add([paper(8, year=2001.0)]).added == 1


def test_whole_numbers_are_ids_wherever_ids_are_given(make: Make) -> None:
    library = make([{"id": number, "title": f"Paper {number}"} for number in range(12)])
    assert library.remove([10, np.int64(11)]).removed == 2
    assert library.sync([{"id": 3, "title": "Paper 3"}], keep={4, "5"}).removed == 7
    assert sorted(library.ids()) == ["3", "4", "5"]
    assert library.recommend(np.int64(3)).ids == library.recommend("3").ids


@pytest.mark.parametrize("by_row", [False, True])
def test_frames_and_their_rows_are_added(make: Make, by_row: bool) -> None:
    frame = pd.DataFrame(
        {
            "id": ["a", "b"],
            "title": ["Graphs", "Speech"],
            "abstract": [np.nan, "We listen."],
            "year": [2001, np.nan],
            "venue": ["ACL", np.nan],
            "keywords": [np.array(["a", "b"], dtype=object), None],
        }
    )
    loose = [{"id": np.int64(7), "title": "Light", "year": np.int64(2003), "venue": float("nan")}]
    wanted = {"a": ("Graphs", "", 2001), "b": ("Speech", "We listen.", None)}
    library = make(dated(2))
    assert library.add(frame.to_dict("records") if by_row else frame).added == 2
    assert library.add(loose).added == 1
    held = contents(library)
    assert {name: held[name] for name in wanted} == wanted
    assert held["7"] == ("Light", "", 2003)
    assert not {"b", "7"} & set(library.ids(where="venue IS NOT NULL"))
    # Parquet read by pandas has lists as arrays.
    assert library.ids(where={"keywords": "b"}) == ["a"]


def test_papers_of_files_and_of_tables_go_straight_in(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "papers.csv"
    file.write_text(
        "id,title,abstract,year,topic\n7,Graphs,We study graphs.,2001,maths\n8,Trees,,,\n"
    )
    library = make(list(read_papers(file)))
    frame = pd.read_csv(file)
    assert frame["abstract"].isna().any()  # NaN is a field that is absent
    assert library.sync(frame).texts_encoded == 0
    assert len(library) == 2
    assert library.ids(where={"topic": "maths", "year": 2001}) == ["7"]
    assert sorted(library.recommend(7, exclude=[8.0]).ids) == []
    assert library.recommend(7, only=[8]).ids == ["8"]


def test_a_path_in_place_of_papers_names_its_reader(make: Make, tmp_path: Path) -> None:
    library = make([paper(0)])
    for path in ("papers.csv", tmp_path / "papers.csv"):
        with pytest.raises(DataError, match=r"papers are a path.*pass .*read_papers\(path\)"):
            library.add(path)


def test_papers_without_ids_that_repeat_each_other(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "papers.csv"
    file.write_text("title,abstract\nGraphs,One.\nTrees,Two.\nGraphs,One.\n")
    with pytest.raises(DataError, match=r"csv:4: title and abstract are those of an earlier"):
        make(list(read_files([file], Rejects())))
