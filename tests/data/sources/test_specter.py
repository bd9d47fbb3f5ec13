"""SPECTER's data.json with metadata.json, and triples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.errors import DataError
from tests.public import Content, run

METADATA = {
    name: {"paper_id": name, "title": f"On {name}", "abstract": None if name == "d" else "Text."}
    for name in "abcd"
}
DATA = {
    "a": {"b": {"count": 5}, "c": {"count": 1}},
    "b": {"d": {"count": 5}},
    "c": {"d": {"count": 1}},
}
FILES: dict[str, Content] = {"data.json": DATA, "metadata.json": METADATA}


def test_cited_papers_are_positives_and_the_others_hard_negatives(tmp_path: Path) -> None:
    found = run(tmp_path, "specter", FILES)
    assert found.pairs("specter", "links") == [
        ("a", "b", "5"),
        ("a", "c", "1"),
        ("b", "d", "5"),
        ("c", "d", "1"),
    ]
    assert found.counts("specter")["queries without a cited paper"] == 1
    data = found.prepare(tmp_path / "out")
    (file,) = data.pairs("train")
    ids = data.texts.ids
    groups = {
        ids[q]: ([ids[p] for p in positives], [ids[n] for n in negatives])
        for q, positives, negatives in zip(
            file.queries, file.positives, file.negatives, strict=True
        )
    }
    # b has no hard negative and stays; c cites nothing, so it trains nothing.
    assert groups == {
        "specter:a": (["specter:b"], ["specter:c"]),
        "specter:b": (["specter:d"], []),
    }
    assert file.task == "link_prediction"


def test_a_split_names_its_queries(tmp_path: Path) -> None:
    files = FILES | {"train.txt": "b\nz\n", "val.txt": "a\n"}
    found = run(tmp_path, "specter", files, splits=["train"])
    assert found.pairs("specter", "links") == [("b", "d", "5")]
    assert found.counts("specter")["queries of other splits"] == 2
    assert found.counts("specter")["queries of the splits that data.json lacks"] == 1


def _text(name: str) -> dict[str, Any]:
    return {"sha": f"{name * 3}", "corpus_id": None, "title": f"On {name}", "abstract": "Text."}


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train-00000-of-00001.parquet"])
def test_triples_in_any_kind_of_file(tmp_path: Path, name: str) -> None:
    triples = [
        {"query": _text("a"), "pos": _text("b"), "neg": _text("c")},
        {"query": _text("a"), "pos": _text("d"), "neg": _text("c")},
    ]
    found = run(tmp_path, "specter", {name: triples})
    assert sorted(set(found.pairs("specter", "links"))) == [
        ("aaa", "bbb", "1"),
        ("aaa", "ccc", "0"),
        ("aaa", "ddd", "1"),
    ]
    assert found.counts("specter") == {"papers": 4, "papers repeated": 2, "triples": 2, "links": 4}


def test_an_id_without_a_text_is_named_with_the_number_of_all(tmp_path: Path) -> None:
    files = {"data.json": DATA | {"x": {"a": {"count": 5}, "y": {"count": 1}}}}
    with pytest.raises(DataError) as caught:
        run(tmp_path, "specter", FILES | files)
    assert "2 of 6 links name a paper or query without a text" in str(caught.value)
    assert "data.json:4" in str(caught.value)
    assert str(caught.value).count("Fix: ") == 1
    found = run(tmp_path, "specter", FILES | files, skip_bad=True)
    assert found.counts("specter")["links without a text"] == 2
    assert found.conversion.rejects.counts["pair names a paper without a text"] == 2
    assert len(found.pairs("specter", "links")) == 4


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"data.json": DATA}, "file does not exist"),
        ({}, "holds neither data.json nor triples"),
        (FILES | {"data.json": '{"a": {"b": {"count": 5}}, "b": {"d"'}, "cut off or damaged"),
        (FILES | {"data.json": {"a": {"b": 5}}}, "not an object with a count"),
        (FILES | {"data.json": {"a": {"b": {"count": "many"}}}}, "not a finite number"),
        (FILES | {"metadata.json": {"a": {"title": "", "abstract": ""}}}, "both empty"),
        (FILES | {"metadata.json": {"a": ["title"]}}, "member is not an object"),
        ({"train.jsonl": [{"query": _text("a"), "pos": _text("b")}]}, "field 'neg' is not an obj"),
        ({"train-0.parquet": [{"query": _text("a")}]}, "file lacks the column pos, neg"),
        ({"train-0.parquet": b"PAR1 no"}, "Parquet file is cut off or damaged"),
    ],
)
def test_bad_downloads(tmp_path: Path, files: dict[str, Content], problem: str) -> None:
    (tmp_path / "download").mkdir()
    with pytest.raises(DataError) as caught:
        run(tmp_path, "specter", files)
    assert problem in str(caught.value)
    assert not (tmp_path / "raw").exists()
