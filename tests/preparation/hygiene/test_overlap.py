"""Overlap with evaluation sets: which texts match, by role, and which files are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.data.manifest import OverlapEntry
from scimult.errors import DataError
from scimult.preparation.hygiene.config import EvaluationRole, HygieneConfig, NearConfig
from scimult.preparation.hygiene.duplicates import find_duplicates
from scimult.preparation.hygiene.evaluation_sets import find_sets, read_set
from scimult.preparation.hygiene.minhash import NEIGHBOURS
from scimult.preparation.hygiene.overlap import ROLES, find_overlap
from scimult.types import BoolArray, Text
from tests.benchmark_sets import write_fields, write_links, write_search
from tests.prepared_folders import write_texts
from tests.raw_corpus import write_jsonl, write_tsv

ABSTRACT = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """Write a set whose query paper q, answer a and candidate c have different titles."""
    root = tmp_path / "eval"
    papers = [
        {"_id": "a", "title": "The answer of this question", "text": ABSTRACT},
        {"_id": "c", "title": "A candidate for the answer", "text": ""},
    ]
    query = {"_id": "q", "title": "A query paper has a title", "abstract": "b", "text": "x"}
    write_jsonl(root / "deep/cite/corpus.jsonl", papers)
    write_jsonl(root / "deep/cite/queries.jsonl", [query, {"_id": "r", "text": "short request"}])
    judged = [("q", "a", 1), ("q", "c", 0), ("r", "a", 1)]
    write_tsv(root / "deep/cite/qrels/test.tsv", ("query-id", "corpus-id", "score"), judged)
    return root


def _overlap(
    folder: Path, sets: Path, texts: list[Text], doi: str | None = None
) -> tuple[list[OverlapEntry], dict[EvaluationRole, BoolArray]]:
    store = write_texts(folder, {f"t:{number}": text for number, text in enumerate(texts)})
    dois = [doi, *[None] * (len(texts) - 1)]
    return find_overlap(store, sets, dois, HygieneConfig())


def test_matches_are_reported_by_role_and_way(sets: Path, tmp_path: Path) -> None:
    texts = [
        Text("label", "A query paper has a title"),
        Text("paper", "A QUERY paper has a title!", "Anything."),
        Text("paper", "The title is another one", ABSTRACT + " end"),
        Text("query", "Short request"),
        Text("paper", "A candidate for the answer", ""),
        Text("paper", "Short request", ""),
    ]
    found = _overlap(tmp_path, sets, texts)
    (report,) = found[0]
    assert report.set == "deep/cite"
    assert report.texts == {"query": 2, "answer": 1, "candidate": 1}
    assert report.found == {"query": 2, "answer": 0, "candidate": 1}
    assert report.ways == {"title": 2, "text": 1}
    rows = {role: np.flatnonzero(found[1][role]).tolist() for role in ROLES}
    assert rows == {"query": [1, 3], "answer": [], "candidate": [4]}


def test_a_query_that_is_only_the_title_of_a_paper_is_found(tmp_path: Path) -> None:
    """The queries of BEIR's SCIDOCS are titles of papers, whose citations are the answers."""
    write_jsonl(tmp_path / "set/corpus.jsonl", [{"_id": "a", "title": "", "text": ABSTRACT}])
    write_jsonl(
        tmp_path / "set/queries.jsonl", [{"_id": "q", "text": "The title of a query paper"}]
    )
    texts = [
        Text("paper", "The Title of a Query-Paper", "Its abstract."),
        Text("query", "the title of a query paper?"),
        Text("paper", "The title of a query", "paper"),
        Text("paper", "The title of a query paper, continued", "Another one."),
    ]
    (report,), rows = _overlap(tmp_path, tmp_path / "set", texts)
    assert report.found["query"] == 1
    assert np.flatnonzero(rows["query"]).tolist() == [0, 1, 2]


def test_a_text_with_few_words_changed_is_found(sets: Path, tmp_path: Path) -> None:
    other = Text("paper", "The answer of that question", ABSTRACT)
    config = HygieneConfig()
    config.near.threshold = 0.7
    found = find_overlap(write_texts(tmp_path, {"t:0": other}), sets, [None], config)
    assert found[0][0].ways == {"near": 1}
    assert found[1]["answer"].tolist() == [True]


@pytest.mark.parametrize(("kept", "is_found"), [(32, True), (31, False)])
def test_near_duplicates_are_at_least_as_similar_as_the_threshold(
    tmp_path: Path, kept: int, is_found: bool
) -> None:
    """Of 40 words, 32 are exactly 0.8 of all; with words for shingles only sets count."""
    words = [f"word{number}" for number in range(40)]
    write_jsonl(tmp_path / "set/papers.jsonl", [{"id": "p", "title": "", "abstract": ABSTRACT}])
    texts = [Text("paper", "", " ".join(words[:kept])), Text("paper", "", ABSTRACT)]
    near = NearConfig(threshold=0.8, shingle_words=1)
    config = HygieneConfig(duplicates="merge", near=near)
    store = write_texts(tmp_path, {f"t:{number}": text for number, text in enumerate(texts)})
    rows = find_overlap(store, tmp_path / "set", [None, None], config)[1]["query"]
    assert rows.tolist() == [is_found, True]
    keepers, counts = find_duplicates(store, [None, None], config)
    assert keepers.tolist() == [0, 0 if is_found else 1]
    assert counts["duplicates by near"] == is_found


def test_labels_are_compared_with_no_evaluation_text(sets: Path, tmp_path: Path) -> None:
    texts = [Text(kind, "The answer of this question", ABSTRACT) for kind in ("label", "paper")]
    assert _overlap(tmp_path, sets, texts)[1]["answer"].tolist() == [False, True]


def test_copies_of_a_text_in_many_sets_hide_none(tmp_path: Path) -> None:
    copy = {"title": "The answer of this question", "abstract": ABSTRACT}
    for number in range(NEIGHBOURS + 4):
        write_jsonl(tmp_path / f"sets/{number:02}/papers.jsonl", [{"id": "p", **copy}])
    folder = tmp_path / "texts"
    folder.mkdir()
    reports, rows = _overlap(
        folder, tmp_path / "sets", [Text("paper", "answer of this question", ABSTRACT)]
    )
    assert [report.ways for report in reports] == [{"near": 1}] * (NEIGHBOURS + 4)
    assert rows["query"].tolist() == [True]


def test_a_doi_is_enough(sets: Path, tmp_path: Path) -> None:
    papers = [{"id": "1", "title": "Known elsewhere", "abstract": "", "doi": "doi:10.1/AB"}]
    write_jsonl(sets / "fields/papers.jsonl", papers)
    found = _overlap(tmp_path, sets, [Text("paper", "Other", "Text.")], "https://doi.org/10.1/ab")
    assert {report.set: report.ways for report in found[0]}["fields"] == {"doi": 1}


def test_the_sets_of_the_evaluation_are_read(tmp_path: Path) -> None:
    for write in (write_search, write_links, write_fields):
        write(tmp_path)
    roles = {
        name: sorted(entry.role for entry in read_set(path))
        for name, path in find_sets(tmp_path).items()
    }
    assert roles["fields"] == ["candidate", "query", "query", "query"]
    assert roles["search"] == ["answer"] * 4 + ["candidate"] + ["query"] * 3
    # d1 is judged with 0 once, and with 1 for another query: an answer.
    assert roles["links"].count("query") == 3


def test_a_set_may_hold_another_one_of_its_name(tmp_path: Path) -> None:
    top = tmp_path / "fields"
    write_fields(top.parent)
    write_fields(top)
    assert find_sets(top) == {"fields": top, "fields/fields": top / "fields"}


def test_a_folder_without_sets_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no evaluation set below this folder.*Fix"):
        find_sets(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        find_sets(tmp_path / "nowhere")
