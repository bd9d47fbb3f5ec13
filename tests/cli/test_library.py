"""``scimult library``, and search, recommend and tag in one, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scimult.library import Library
from tests.command import completed, invoke, refused, rows_of
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model

BIB = """@article{a1, title={Deep nets for graphs}, abstract={We study nets.}, year={2019}}
@article{a2, title={Proteins}, author={Doe, J and Roe, K}, year={2021}, journal={Nature}}
@article{a3, title={Protein folding with nets}, year={2020}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", similarity="cosine")


def _rows(*arguments: object) -> list[dict[str, Any]]:
    return rows_of(invoke(*arguments, "--json"))


def _table(folder: Path, text: str) -> Path:
    (folder / "papers.csv").write_text(text, encoding="utf-8")
    return folder / "papers.csv"


@pytest.fixture
def library(model: Path, tmp_path: Path) -> Path:
    (tmp_path / "library.bib").write_text(BIB, encoding="utf-8")
    inputs = ("--model", model, "--papers", tmp_path / "library.bib")
    created = completed("library", "create", tmp_path / "mine", *inputs)
    assert "mine: 3 papers, encoded for " in created.output
    return tmp_path / "mine"


def test_a_part_of_an_index_says_how_many_are_missing(model: Path, tmp_path: Path) -> None:
    rows = [f"p{number},graph {number} of nets\n" for number in range(1000)]
    table = _table(tmp_path, "".join(["id,title\n", *rows]))
    inputs = ("--model", model, "--papers", table, "--task", "search")
    completed("library", "create", tmp_path / "many", *inputs)
    result = invoke("library", "index", tmp_path / "many", "--part", "0/2")
    assert result.output.endswith("many: part 0/2 is done; parts still missing: 1\n")
    result = completed("library", "index", tmp_path / "many", "--kind", "hnsw")
    assert " (search width " in result.output
    assert " lists" not in result.output


def test_fields_of_other_names_are_read_and_an_empty_one_is_not(
    model: Path, tmp_path: Path
) -> None:
    table = _table(tmp_path, "id,title,name,summary,year\na,x1,Nets,Of graphs.,2020\n")
    columns = ("--column", "title=name", "--column", " abstract = summary ", "--column", "year=")
    inputs = ("--model", model, "--papers", table, "--task", "search", *columns)
    completed("library", "create", tmp_path / "named", *inputs)
    (hit,) = Library.open(tmp_path / "named", model=model).search("nets")
    assert (hit.title, hit.abstract) == ("Nets", "Of graphs.")
    assert "year" not in hit.columns


def test_a_bibliography_becomes_a_library_that_follows_it(library: Path) -> None:
    bib = library.parent / "library.bib"
    assert len(_rows("search", "nets", "--library", library)) == 3
    bib.write_text(
        BIB.replace("Proteins", "Enzymes") + "@misc{a4, title={New}}\n", encoding="utf-8"
    )
    result = invoke("library", "sync", library, "--papers", bib)
    assert "4 papers (1 added, 1 changed, 2 unchanged, 0 removed; 2 texts encoded)" in result.output
    shown = invoke("search", "nets", "--library", library).stdout
    assert "2019" in shown
    assert "None" not in shown  # the year of a4
    result = invoke("library", "remove", library, "a1", "a9")
    assert "not in the library: 1 of 2 ids" in result.stderr
    assert "3 papers" in result.stdout
    assert "2 papers" in invoke("library", "remove", library, "--where", "year = 2020").stdout
    facts = json.loads(invoke("library", "info", library, "--json").stdout)
    assert (facts["papers"], facts["model"], facts["made by"]["pooling"]) == (2, "tiny", "cls")
    assert "2 usable papers, 0 damaged files" in invoke("library", "check", library).stdout
    assert "2 papers in 1 segment\n" in invoke("library", "compact", library).stdout


def test_a_check_names_damaged_files_and_fails(library: Path) -> None:
    path = next(path for path in library.rglob("*") if path.suffix == ".npy")
    path.write_bytes(path.read_bytes()[:-1])
    result = invoke("library", "check", library)
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert re.search(r"mine: \d usable papers?, 1 damaged file$", result.stdout.strip())


def test_tags_of_a_library_replace_no_file_unasked(library: Path) -> None:
    labels = library.parent / "labels.jsonl"
    labels.write_text('{"id": "l1", "name": "Nets"}\n{"id": "l2", "name": "Proteins"}\n')
    options = ("tag", "--library", library, "--labels", labels, "--out")
    assert "output is also an input" in refused(*options, labels, "--overwrite")
    out = library.parent / "tags.jsonl"
    out.write_text("mine\n")
    assert "output exists already" in refused(*options, out)
    assert out.read_text() == "mine\n"
    result = invoke(*options, out, "--overwrite", "--top", 1)
    assert result.stdout == f"{out}: up to 1 label for each of 3 papers\n"
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {row["id"] for row in rows} == {"a1", "a2", "a3"}
    assert all(len(row["labels"]) == 1 for row in rows)


@pytest.mark.parametrize(
    "bad",
    [
        "@article{a1, title={}}",  # no text
        "@article{a1, title={Deep} year={2019}}",
        r"@article{a1, title={\sqrt}}",
    ],
)
def test_sync_keeps_papers_whose_records_are_bad_today(library: Path, bad: str) -> None:
    bib = library.parent / "library.bib"
    bib.write_text(f"{bad}\n@article{{a3, title={{Protein folding with nets}}, year={{2020}}}}\n")
    result = invoke("library", "sync", library, "--papers", bib, "--skip-bad")
    counts = "(0 added, 0 changed, 1 unchanged, 1 removed, 1 kept; 0 texts encoded)"
    assert f"2 papers {counts}" in result.output
    assert "nothing was removed" not in result.stderr
    rows = _rows("search", "deep nets for graphs", "--library", library)
    assert {row["id"] for row in rows} == {"a1", "a3"}
    assert rows[0]["year"] == 2019


def test_sync_removes_nothing_if_a_bad_record_has_no_readable_id(library: Path) -> None:
    papers = library.parent / "papers.jsonl"
    papers.write_text('{"id": "a3", "title": "New"}\n{"id": "a1", "title": "Dee\n')
    sync = ("library", "sync", library, "--papers", papers, "--skip-bad")
    result = invoke(*sync)
    assert "3 papers (0 added, 1 changed, 0 unchanged, 0 removed, 2 kept; " in result.output
    assert "nothing was removed: a record without a readable id was left out" in result.stderr
    papers.write_text('{"id": "a3", "title": "New"}\n{"id": "a3", "title": "Twice"}\n')
    assert "1 paper (0 added, 0 changed, 1 unchanged, 2 removed; " in invoke(*sync).output


def test_a_mistake_in_the_papers_leaves_no_library(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "1", "title": "One"}\n{"id": "2"}\n', encoding="utf-8")
    create = ("library", "create", tmp_path / "mine", "--model", model, "--papers")
    assert "bad.jsonl:2" in refused(*create, bad)
    assert not (tmp_path / "mine").exists()
    assert "no paper in the files (value: '" in refused(*create, _table(tmp_path, "id,title\n"))
    bad.write_text('{"id": "1"}\n{"id": "a\\nb", "title": "Two"}\n', encoding="utf-8")
    skipped = invoke(*create, bad, "--skip-bad")
    assert skipped.exit_code == 1
    assert "bad.jsonl:1: title and abstract are both empty" in skipped.stderr
    assert "bad.jsonl:2: id holds a line break or control character" in skipped.stderr
    assert not (tmp_path / "mine").exists()
    bad.write_text('{"id": "1", "title": "One"}\n', encoding="utf-8")
    completed(*create, bad)
    message = refused(*create, bad)
    assert "library already exists" in message
    assert "scimult library sync" in message
    assert len(_rows("search", "one", "--library", tmp_path / "mine")) == 1


def test_search_recommend_and_tag_in_a_library(library: Path) -> None:
    rows = _rows("search", "nets", "--library", library, "--where", "year >= 2020", "--percentile")
    assert {row["id"] for row in rows} == {"a2", "a3"}
    assert set(rows[0]) == {
        "rank",
        "score",
        "percentile",
        "id",
        "title",
        "authors",
        "venue",
        "year",
    }
    table = invoke("search", "nets", "--library", library, "--top", 1, "--percentile").stdout
    (best,) = _rows("search", "nets", "--library", library, "--top", 1, "--percentile")
    cells = [str(best["rank"]), f"{best['score']:.4f}", f"{best['percentile']:.2f}", best["id"]]
    assert cells == table.splitlines()[-2].split()[:4]
    table = invoke("search", "nets", "--library", library, "--top", 1, "--words", "0.5").stdout
    assert "score (cosine and BM25, 0 to 1)" in table
    two = _rows("recommend", "--library", library, "--id", "a1", "--id", "a2")
    assert [row["id"] for row in two] == ["a3"]
    assert len(_rows("recommend", "--library", library, "--title", "Nets")) == 3
    assert len(_rows("recommend", "--library", library, "--title", "Nets", "--top", 2)) == 2
    for question in (("search", "nets"), ("recommend", "--title", "Nets")):
        above = _rows(*question, "--library", library, "--min-score", -1, "--top", 2)
        assert len(above) == 3  # all of them
    labels = library.parent / "labels.jsonl"
    labels.write_text('{"id": "l1", "name": "Biology"}\n{"id": "l2", "name": "Nets"}\n')
    tagged = _rows("tag", "--library", library, "--labels", labels, "--top", 1, "--id", "a2")
    assert [(row["id"], len(row["labels"])) for row in tagged] == [("a2", 1)]
    out = library.parent / "tags.jsonl"
    completed("tag", "--library", library, "--labels", labels, "--out", out)
    assert len(out.read_text().splitlines()) == 3
    table = library.parent / "labels.csv"
    table.write_text("id;name;definition\r\nl1;Biology;\r\nl2;Nets;\r\n", encoding="utf-8-sig")
    with_table = ("tag", "--library", library, "--labels", table, "--top", 1, "--id", "a2")
    assert _rows(*with_table) == tagged
    assert "ends in .jsonl" in refused(*with_table, "--out", library.parent / "tags.csv")


@pytest.mark.parametrize("verb", ["search", "recommend", "tag"])
def test_a_library_that_is_rewritten_meanwhile_is_asked_again(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Its papers could not be read: "open the library again"."""
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"id": "l", "name": "nets", "definition": "Graphs."}\n')
    options = {
        "search": ["nets"],
        "recommend": ["--title", "nets", "--abstract", "We study nets."],
        "tag": ["--labels", labels, "--id", "a3"],
    }
    ask = getattr(Library, verb)
    asked = 0

    def overtaken(opened: Library, *arguments: Any, **question: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 3:
            writer = Library.open(library)
            writer.remove([f"a{asked}"])
            writer.compact()
        return ask(opened, *arguments, **question)

    monkeypatch.setattr(Library, verb, overtaken)
    rows = _rows(verb, *options[verb], "--library", library)
    assert asked == 3
    assert {row["id"] for row in rows} == {"a3"}


def test_the_share_of_words_is_tuned(library: Path, tmp_path: Path) -> None:
    queries = tmp_path / "dev.jsonl"
    rows = [{"query": "protein folding", "ids": ["a3"]}, {"query": "enzymes", "ids": ["a2"]}]
    write_jsonl(queries, rows * 5)
    output = invoke("library", "tune", library, "--queries", queries).output
    assert "left out" not in output
    write_jsonl(queries, [*rows * 5, {"query": "enzymes", "ids": ["gone"]}])
    output = invoke("library", "tune", library, "--queries", queries).output
    assert "left out 1: no words, or no paper of the library\n" in output
    assert "--words tuned is " in output
    hits = _rows("search", "protein folding", "--library", library, "--words", "tuned")
    assert {hit["id"] for hit in hits} == {"a1", "a2", "a3"}
    assert "not a share of BM25" in refused("search", "x", "--library", library, "--words", "most")
    queries.write_text('{"query": "x", "ids": "a1"}\n', encoding="utf-8")
    assert "dev.jsonl:1" in refused("library", "tune", library, "--queries", queries)


def test_exports_and_a_newer_model(library: Path, tmp_path: Path) -> None:
    out = tmp_path / "feed"
    result = invoke("library", "export", library, "--to", "opensearch", "--out", out)
    assert "3 papers for opensearch" in result.output
    assert (out / "index.json").is_file()
    assert "exactly one target is needed" in refused("library", "export", library, "--to", "milvus")
    newer = save_tiny_model(tmp_path / "newer", similarity="cosine", seed=4)
    other = refused("search", "nets", "--library", library, "--model", newer)
    assert "differ in weights" in other
    assert "or go over to the other: scimult library migrate" in other
    assert "too few papers" in refused("library", "migrate", library, "--model", newer, "--adapter")
    result = invoke("library", "migrate", library, "--model", newer)
    assert "3 papers by newer (3 texts encoded)" in result.output
    assert len(_rows("search", "nets", "--library", library)) == 3
    assert "too few papers for an index" in refused("library", "index", library)


def test_an_adapter_says_what_it_finds(model: Path, tmp_path: Path) -> None:
    rows = [f"p{number},graph {number} of nets\n" for number in range(120)]
    table = _table(tmp_path, "".join(["id,title\n", *rows]))
    newer = save_tiny_model(tmp_path / "newer", similarity="cosine", seed=4)
    inputs = ("--model", model, "--papers", table, "--task", "search")
    completed("library", "create", tmp_path / "some", *inputs)
    result = invoke("library", "migrate", tmp_path / "some", "--model", newer, "--adapter")
    said = r"some: search: [01]\.\d{3} of the top 10 of newer found on held-out papers \(adapter: "
    assert re.search(said, result.output)
    assert result.output.endswith(f"search with --model {newer}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "x"], "--model is missing"),
        (["search", "x", "--model", "."], "--papers is missing"),
        (["search", "x", "--library", "nowhere"], "not a library"),
        (["search", "x", "--library", "mine", "--papers", "x"], "are mutually exclusive"),
        (
            ["search", "x", "--model", ".", "--papers", "x", "--where", "1"],
            "--where can only be used",
        ),
        (["search", "x", "--library", "mine", "--pooling", "cls"], "--pooling can only be used"),
        (["search", "x", "--library", "mine", "--dtype", "int8"], "--dtype can only be used"),
        (["recommend", "--id", "a", "--library", "mine", "--no-cache"], "--no-cache can only be"),
        (["tag", "--library", "mine", "--labels", "l", "--dtype", "int8"], "--dtype can only"),
        (["search", "x", "--server", "http://a", "--dtype", "int8"], "--server excludes --dtype"),
        (
            ["search", "x", "--library", "mine", "--rerank-top", "5"],
            "--rerank-top can only be used with --rerank",
        ),
        (["search", "x", "--library", "mine", "--where", "jear > 1"], "cannot filter"),
        (["library", "remove", "mine"], "exactly one of ids and --where is needed"),
        (
            ["library", "migrate", "mine", "--model", ".", "--adapter", "--precision", "float16"],
            "--precision can only be used with a migration that encodes",
        ),
        (["library", "add", "mine", "--papers", "none.bib"], "none.bib"),
        (
            ["library", "add", "mine", "--papers", "library.bib", "--column", "x"],
            "a column is NAME=FIELD",
        ),
        (
            ["library", "create", "mine", "--model", "x", "--papers", "library.bib"],
            "does not exist",
        ),
    ],
)
def test_mistakes_are_named(
    library: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(library.parent)
    assert message in refused(*arguments)
