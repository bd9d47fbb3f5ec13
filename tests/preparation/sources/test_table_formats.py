"""Tables of papers in third-party formats, in many files, with references inside the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.errors import ConfigError, DataError
from tests.data.importers import layouts
from tests.public import Content, run


def test_a_dump_is_read_by_its_format_from_many_files(tmp_path: Path) -> None:
    works = [dict(work) for work in layouts.OPENALEX]
    works.append({**works[1], "id": "https://openalex.org/W12", "title": "A third"})
    works[2]["referenced_works"] = ["https://openalex.org/W10", "https://openalex.org/W12"]
    files: dict[str, Content] = {
        f"works/updated_date=2024-01-0{number}/part_000.jsonl": [work]
        for number, work in enumerate(works, start=1)
    }
    papers = {"file": "works/*/part_*.jsonl", "format": "openalex"}
    found = run(tmp_path, "table", files, papers=papers)
    assert [row["id"] for row in found.rows("table", "papers")] == ["W10", "W11", "W12"]
    assert found.rows("table", "papers")[0] == {
        "id": "W10",
        "title": "Graphs of papers & people",
        "abstract": "We draw graphs. We win.",
        "authors": ["Ana Núñez", "Bo Li"],
        "venue": "JMLR",
        "year": 2012,
        "doi": "10.1234/abc.1",
        "labels": ["Citation Analysis"],
    }
    assert sorted(found.pairs("table", "citations")) == [("W10", "W11"), ("W12", "W10")]
    counts = found.counts("table")
    assert counts["citations without a text"] == 1
    assert counts["pairs of a paper with itself"] == 1
    # The format is detected from the first record, and its fields can be left out.
    papers = {"file": "works/*/part_*.jsonl", "cited": "references"}
    again = run(tmp_path, "table", files, papers=papers)
    assert again.rows("table", "papers") == found.rows("table", "papers")
    assert sorted(again.pairs("table", "references")) == [("W10", "W11"), ("W12", "W10")]


def test_references_inside_the_record_of_a_plain_table(tmp_path: Path) -> None:
    rows = [
        {"pid": 1, "name": "A", "body": "T.", "refs": [2, 9], "when": "2012-05-01"},
        {"pid": 2, "name": "B", "body": "T.", "refs": [], "when": "May 2013"},
    ]
    columns = {"id": "pid", "title": "name", "abstract": "body", "year": "when"}
    columns["references"] = "refs"
    papers = {"file": "p.jsonl", "columns": columns}
    found = run(tmp_path, "table", {"p.jsonl": rows}, papers=papers)
    assert found.pairs("table", "citations") == [("1", "2")]
    assert [row["year"] for row in found.rows("table", "papers")] == [2012, 2013]
    with pytest.raises(DataError, match="without a text: 1 of 2"):
        run(tmp_path, "table", {"p.jsonl": rows}, papers=papers, dangling={"citations": "error"})


def test_references_inside_the_records_beside_links_serve_mining_alone(tmp_path: Path) -> None:
    rows = [{"id": n, "title": "T", "abstract": "A", "refs": [3 - n]} for n in (1, 2)]
    files: dict[str, Content] = {"p.jsonl": rows, "links.tsv": "query-id\tpaper-id\n1\t2\n"}
    papers = {"file": "p.jsonl", "columns": {"references": "refs"}}
    links = {"file": "links.tsv"}
    with pytest.raises(DataError, match=r"same task.*'table'.*Fix: .*papers\.cited=references"):
        run(tmp_path, "table", files, papers=papers, links=links)
    found = run(tmp_path, "table", files, papers={**papers, "cited": "references"}, links=links)
    assert found.pairs("table", "references") == [("1", "2"), ("2", "1")]
    assert [row["paper-id"] for row in found.rows("table", "links")] == ["2"]


def test_columns_may_be_paths_and_expressions_in_every_table(tmp_path: Path) -> None:
    works: list[dict[str, Any]] = [
        {"id": "x/1", "t": "a", "s": {"n": "V"}, "p": [{"n": "Ana"}], "refs": ["x/2", "x/9"]},
        {"id": "x/2", "t": "b", "s": {"n": None}, "p": [], "refs": []},
    ]
    files: dict[str, Content] = {"0.jsonl": works[:1], "1.jsonl": works[1:]}
    columns = {"id": "replace(id, 'x/', '')", "title": "upper(t)", "abstract": None}
    columns |= {"venue": "s.n", "authors": "p.n"}
    edges = {"citing": "replace(id, 'x/', '')", "cited": "replace(unnest(refs), 'x/', '')"}
    found = run(
        tmp_path,
        "table",
        files,
        papers={"file": "*.jsonl", "columns": columns},
        citations={"file": ["0.jsonl", "1.jsonl"], "columns": edges},
        dangling={"citations": "drop"},
    )
    assert found.rows("table", "papers") == [
        {"id": "1", "title": "A", "abstract": "", "authors": ["Ana"], "venue": "V"},
        {"id": "2", "title": "B", "abstract": ""},
    ]
    assert found.pairs("table", "citations") == [("1", "2")]
    assert found.conversion.notes == ["table: every abstract is empty: models see only titles"]
    with pytest.raises(DataError, match=r"0.jsonl: columns do not fit the file: .*nope") as caught:
        run(
            tmp_path,
            "table",
            files,
            papers={"file": "*.jsonl", "columns": columns | {"title": "nope(t)"}},
        )
    assert str(caught.value).count("Fix: ") == 1


@pytest.mark.parametrize(("name", "text"), [("a.bib", layouts.BIBTEX), ("a.ris", layouts.RIS)])
def test_a_reference_manager_s_export_needs_no_option(tmp_path: Path, name: str, text: str) -> None:
    found = run(tmp_path, "table", {name: text}, papers={"file": name})
    first, second = found.rows("table", "papers")
    assert (first["id"], first["labels"]) == ("nunez2012", ["graphs", "citation analysis"])
    assert second["title"] == "Only a title"
    counts = found.counts("table")
    hashed = counts.get("papers without an id, known by a hash of their text", 0)
    assert hashed == (name == "a.ris")
    found = run(tmp_path, "table", {name: text}, papers={"file": name, "columns": {"labels": None}})
    assert "labels" not in found.rows("table", "papers")[0]


def test_globs_that_match_nothing_and_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        run(tmp_path, "table", {"x.csv": "id\n"}, papers={"file": "*.gz"})
    with pytest.raises(ConfigError, match="did you mean 'openalex'"):
        run(tmp_path, "table", {}, papers={"file": "x", "format": "openalx"})
    with pytest.raises(ConfigError, match="'citations' or 'references'"):
        run(tmp_path, "table", {}, papers={"file": "x", "cited": "links"})


def test_a_new_file_that_a_glob_meets_is_read(tmp_path: Path) -> None:
    papers = {"file": "*.csv", "columns": {"abstract": None}}
    files = {"a.csv": "id,title\n1,A\n"}
    assert run(tmp_path, "table", files, papers=papers).counts("table")["papers"] == 1
    files["b.csv"] = "id,title\n2,B\n"
    assert run(tmp_path, "table", files, papers=papers).counts("table")["papers"] == 2
