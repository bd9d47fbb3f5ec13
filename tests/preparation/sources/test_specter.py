"""SPECTER's data.json with metadata.json, and triples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.importers.paper import text_id
from scimult.data.negatives import NO_NEGATIVE
from scimult.data.pair_streams import pair_streams
from scimult.data.prepared import PreparedData, read_triples
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
    assert not found.notes, "Table A1 counts the queries of triples, not of the graph"
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


def _triple(papers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return dict(zip(("query", "pos", "neg"), papers, strict=True))


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train-00000-of-00001.parquet"])
def test_triples_in_any_kind_of_file(tmp_path: Path, name: str) -> None:
    triples = [_triple([*map(_text, names)]) for names in ("abc", "adc")]
    found = run(tmp_path, "specter", {name: triples})
    assert found.pairs("specter", "links") == [
        ("aaa", "bbb", "1", "ccc"),
        ("aaa", "ddd", "1", "ccc"),
    ]
    assert found.counts("specter") == {"papers": 4, "papers repeated": 2, "triples": 2, "links": 2}


def test_an_id_without_a_text_is_named_with_the_number_of_all(tmp_path: Path) -> None:
    files = {"data.json": DATA | {"x": {"a": {"count": 5}, "y": {"count": 1}}}}
    with pytest.raises(DataError) as caught:
        run(tmp_path, "specter", FILES | files)
    assert "links that name a paper or query without a text: 2 of 6" in str(caught.value)
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
        (FILES | {"metadata.json": '[{"id": "a"}]'}, "file is not one JSON object"),
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


def _drawn_triples(data: PreparedData, epochs: int) -> set[tuple[str, ...]]:
    """Return query, positive and negative of every pair of some epochs of training, by id."""
    drawn: set[tuple[str, ...]] = set()
    for stream in pair_streams(data.pairs("train"), 0):
        rows = stream.rows(0, epochs * len(stream))
        rows = rows.take(np.flatnonzero(rows.negatives_R != NO_NEGATIVE), [])
        columns = (rows.queries_R, rows.positives_R, rows.negatives_R)
        for place in zip(*(data.texts.ids_at(column) for column in columns), strict=True):
            drawn.add(tuple(name.split(":")[1] for name in place))
    return drawn


RELEASED = {("a", "b", "c"), ("a", "b", "e"), ("a", "d", "f"), ("a", "g", "c"), ("b", "c", "a")}


@pytest.mark.long
@pytest.mark.parametrize("source", ["specter", "scirepeval", "sentence-triples"])
@pytest.mark.parametrize("duplicates", ["ignore", "merge"])
def test_a_drawn_negative_was_released_with_its_positive(
    tmp_path: Path, source: str, duplicates: str
) -> None:
    """With several triples of one query, training draws exactly these over epochs."""
    triples = [_triple([*map(_text, names)]) for names in sorted(RELEASED)]
    options: dict[str, Any]
    if source == "specter":
        found = run(tmp_path, source, {"train.jsonl": triples})
        expected = {tuple(name * 3 for name in triple) for triple in RELEASED}
    elif source == "scirepeval":
        options = {"tasks": ["cite_prediction"], "splits": ["train"]}
        found = run(tmp_path, source, {"cite_prediction/train.jsonl": triples}, **options)
        expected = {tuple(name * 3 for name in triple) for triple in RELEASED}
    else:
        rows = [[f"On {name}[SEP]Text." for name in triple] for triple in sorted(RELEASED)]
        options = {"anchor": "paper", "separator": "[SEP]"}
        found = run(tmp_path, source, {"train.jsonl": rows}, **options)
        expected = {tuple(text_id(f"On {name}", "Text.") for name in triple) for triple in RELEASED}
    data = found.prepare(tmp_path / "out", hygiene={"duplicates": duplicates})
    assert _drawn_triples(data, 40) == expected
    assert len(read_triples(data.folder)) == len(RELEASED)
    # One pair for each (query, positive), however many negatives came with it.
    assert sum(entry.pairs for entry in data.manifest.pairs) == 4


def test_a_negative_that_is_in_its_own_pair_is_counted_and_left_out(tmp_path: Path) -> None:
    triples = [_triple([*map(_text, names)]) for names in ("abb", "aca", "adc")]
    found = run(tmp_path, "specter", {"train.jsonl": triples})
    assert found.counts("specter")["hard negatives that are in their own pair"] == 2
    # c is a positive of the query, too.
    assert _drawn_triples(found.prepare(tmp_path / "out"), 3) == set()


def test_negatives_of_a_row_with_several_positives_are_the_anchors(tmp_path: Path) -> None:
    rows = [{"query": "q", "pos": ["p", "o"], "neg": ["n", "m"]}, {"query": "q", "pos": ["r"]}]
    found = run(tmp_path, "sentence-triples", {"train.jsonl": rows})
    data = found.prepare(tmp_path / "out")
    (file,) = data.pairs("train")
    assert len(file) == 1
    assert (file.positives.lengths[0], file.negatives.lengths[0]) == (3, 2)
    assert len(read_triples(data.folder)) == 0
    assert not (data.folder / "triples.arrow").exists()


def test_a_negative_goes_with_the_texts_that_hygiene_removes_or_merges(tmp_path: Path) -> None:
    """Paper x repeats paper d, and y repeats the query: one triple moves, the other is dropped."""
    texts = {name: _text(name) for name in "abcde"}
    texts["x"] = {**_text("x"), "title": "On d"}
    texts["y"] = {**_text("y"), "title": "On a"}
    triples = [_triple([texts[i] for i in names]) for names in ("dbc", "axc", "aby", "aec")]
    for triple in triples:
        for paper in triple.values():
            paper["abstract"] = f"A long enough abstract of the paper {paper['title']}. " * 9
    data = run(tmp_path, "specter", {"train.jsonl": triples}).prepare(
        tmp_path / "out", hygiene={"duplicates": "merge"}
    )
    rows = data.pairs("train")[0]
    pools = {
        (data.texts.ids[q], data.texts.ids[p]): [data.texts.ids[n] for n in pool]
        for q, (p,), pool in zip(rows.queries, rows.positives, rows.negatives, strict=True)
    }
    one, two = "specter:aaa", "specter:ddd"
    assert pools == {
        (two, "specter:bbb"): ["specter:ccc"],
        (one, two): ["specter:ccc"],
        (one, "specter:bbb"): [],
        (one, "specter:eee"): ["specter:ccc"],
    }
