"""Search, recommend and tag, as a user calls them."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.inference import SciMult
from scimult.inference.origin import space_of
from scimult.library import Library
from tests.library.conftest import PAPERS, dated, made, paper, scores_of
from tests.tiny import save_cross_encoder, save_tiny_model


@pytest.fixture
def library(dated_library: Library) -> Library:
    return dated_library


def _best(scores: dict[str, float], keep: Callable[[dict[str, Any]], bool]) -> list[str]:
    kept = {row["id"] for row in PAPERS if keep(row)}
    return sorted(kept, key=lambda name: -scores[name])


FILTERS: list[tuple[Any, Callable[[dict[str, Any]], bool]]] = [
    ("year >= 2005 and venue = 'ACL'", lambda row: row["year"] >= 2005 and row["venue"] == "ACL"),
    ({"year": (2003, 2006)}, lambda row: 2003 <= row["year"] <= 2006),
    ({"year": (None, 2003)}, lambda row: row["year"] <= 2003),
    ({"year": [2001, 2009]}, lambda row: row["year"] in (2001, 2009)),
    ({"venue": None}, lambda row: row["venue"] is None),
    ({"venue": ["NAACL", None]}, lambda row: row["venue"] is None),
    ({"labels": "protein"}, lambda row: "protein" in row["labels"]),
    ({"labels": ["protein", "graph"]}, lambda row: row["labels"][0] in ("protein", "graph")),
    ({"id": ["p001", "p002"]}, lambda row: row["id"] in ("p001", "p002")),
    ({"year": []}, lambda row: False),
    ({"year": np.int64(2004)}, lambda row: row["year"] == 2004),
    ({"year": [np.int64(2004), 2005]}, lambda row: row["year"] in (2004, 2005)),
    ({"year": (np.int64(2004), None)}, lambda row: row["year"] >= 2004),
    ({"year": np.array([2004, 2005])}, lambda row: row["year"] in (2004, 2005)),
    ({"year": range(2004, 2006)}, lambda row: row["year"] in (2004, 2005)),
    ({"year": {2004: "a", 2005: "b"}.keys()}, lambda row: row["year"] in (2004, 2005)),
    ({"year": pd.Series([2004, 2005])}, lambda row: row["year"] in (2004, 2005)),
    ({"year": pa.array([2004, 2005])}, lambda row: row["year"] in (2004, 2005)),
    ({"labels": np.str_("protein")}, lambda row: "protein" in row["labels"]),
    ({"labels": np.array(["protein"])}, lambda row: "protein" in row["labels"]),
    ({"labels": 7}, lambda row: False),
    ("year = (SELECT max(year) FROM papers)", lambda row: row["year"] == 2009),
]


# Without addresses: the processes of a run must find tests of the same names.
FILTER_NAMES = [re.sub(r" object at 0x\w+", "", str(where)) for where, _ in FILTERS]


@pytest.mark.parametrize(("where", "keep"), FILTERS, ids=FILTER_NAMES)
def test_filters_keep_recall(
    library: Library, model: SciMult, where: Any, keep: Callable[[dict[str, Any]], bool]
) -> None:
    wanted = _best(scores_of(model, "graph of tokens"), keep)
    assert library.search("graph of tokens", where=where, k=40).ids == wanted


def test_pages_exclusions_and_thresholds(library: Library, model: SciMult) -> None:
    scores = scores_of(model, "kernel")
    order = sorted(scores, key=lambda name: -scores[name])
    pages = [library.search("kernel", k=7, offset=start) for start in range(0, 42, 7)]
    assert [name for page in pages for name in page.ids] == order
    assert [hit.rank for page in pages for hit in page] == list(range(1, 41))
    assert library.search("kernel", exclude=order[:2], k=3).ids == order[2:5]
    assert library.search("kernel", only=order[5:9], k=9).ids == order[5:9]
    least = (scores[order[20]] + scores[order[21]]) / 2
    found = library.search("kernel", min_score=least)
    assert found.ids == order[:21]
    assert min(found.scores) >= least
    assert library.search("kernel", min_score=least, k=5, offset=18).ids == order[18:21]
    assert library.search("kernel", min_score=2.0).ids == []


def test_seeds_and_own_vectors(library: Library, model: SciMult, tmp_path: Path) -> None:
    seeds = ["p004", "p011"]
    chosen = [row for row in PAPERS if row["id"] in seeds]
    vector_D = model.encode(chosen, task="link_prediction", role="query").mean(axis=0)
    by_ids = library.recommend(seeds, k=5)
    space = space_of(model, "link_prediction", "query")
    by_vector = library.search(
        vector=vector_D, space=space, task="link_prediction", exclude=seeds, k=5
    )
    assert by_ids.ids == by_vector.ids
    assert by_ids.scores == pytest.approx(by_vector.scores, abs=1e-5)
    assert not set(seeds) & set(by_ids.ids)
    new = library.recommend(title=chosen[0]["title"], abstract=chosen[0]["abstract"], k=1)
    assert new.ids == ["p004"]
    # As a frame's row or a database has it.
    alone = library.recommend(title=None, abstract=chosen[0]["abstract"])
    assert alone.ids == library.recommend(abstract=chosen[0]["abstract"]).ids
    with pytest.raises(DataError, match=r"shape \(1, 3\) for a library of width 16"):
        library.search(vector=np.ones(3, np.float32))
    other = SciMult.from_pretrained(save_tiny_model(tmp_path / "o", similarity="cosine", seed=3))
    with pytest.raises(DataError, match="differ in weights"):
        library.search(vector=vector_D, space=space_of(other, "search", "query"))
    with pytest.raises(DataError, match=r"no paper has this id.*'p0099'.*did you mean"):
        library.recommend("p0099")


def test_seeds_are_queries_where_sides_differ(tmp_path: Path) -> None:
    """Of a search, whose queries are no papers, the stored vector is the only one they have."""
    folder = save_tiny_model(tmp_path / "m", similarity="cosine", routing="task_and_side")
    model = SciMult.from_pretrained(folder)
    library = made(tmp_path / "library", model, PAPERS, tasks=["link_prediction", "search"])
    for task, role in (("link_prediction", "query"), ("search", "candidate")):
        seed_D = model.encode(PAPERS[4:5], task=task, role=role)[0]
        candidates_ND = model.encode(PAPERS, task=task, role="candidate")
        assert task not in library.state.manifest.shared
        scores_N = candidates_ND @ seed_D
        order = [row for row in np.argsort(-scores_N) if row != 4]
        found = library.recommend("p004", task=task, k=39)
        assert found.ids == [PAPERS[row]["id"] for row in order]
        assert found.scores == pytest.approx(scores_N[order].tolist(), abs=1e-5)


def test_a_cross_encoder_reorders_the_first(library: Library, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = save_cross_encoder(tmp_path / "cross")
    first = library.search("graph", k=6)
    found = library.search("graph", rerank=str(folder), rerank_top=6, k=6)
    scores = CrossEncoder(str(folder)).predict([("graph", text.joined) for text in first.texts])
    assert found.ids == [first.ids[place] for place in np.argsort(-scores)]
    assert found.score == "cross-encoder"
    # Gone from the disk: it is opened once. A page beyond rerank_top is reranked too, not cut off.
    shutil.rmtree(folder)
    beyond = library.search("graph", rerank=str(folder), rerank_top=2, k=6)
    assert beyond.ids == found.ids


def test_percentiles_are_shares_of_the_library(library: Library) -> None:
    found = library.search("graph", k=40, percentile=True)
    assert [hit.percentile for hit in found] == pytest.approx(
        [100 * (39 - i) / 40 for i in range(40)]
    )


def test_results_hold_ids_scores_and_texts(library: Library) -> None:
    found = library.search("graph", k=2)
    assert str(found).splitlines()[0] == "2 papers by cosine"
    assert str(found[:1]).splitlines()[0] == "1 paper by cosine"
    assert str(found).splitlines()[1].split() == [
        *("1", f"{found.scores[0]:.4f}", found.ids[0]),
        *found[0].title.split(),
    ]
    assert found[0].abstract == library.search(ids=[found[1].id], only=[found[0].id])[0].abstract
    assert set(found.as_dicts()[0]) == {"rank", "score", "id", "title", "year", "venue", "labels"}
    assert "\x1b" not in repr(
        type(found)(
            [type(found[0])(1, 0.5, "a", type(found.texts[0])("paper", "\x1b[31m"))], "cosine"
        )
    )


def test_tags_come_from_stored_vectors(library: Library, model: SciMult) -> None:
    labels = [{"id": "l1", "name": "Graphs", "definition": "Nodes"}, {"id": "l2", "name": "Plasma"}]
    tagged = library.tag(labels, where={"year": 2004}, k=2)
    assert [one.id for one in tagged] == ["p004", "p014", "p024", "p034"]
    papers_ND = model.encode([PAPERS[4]], task="classification", role="query")
    labels_ND = model.encode(labels, task="classification", role="candidate")
    scores = dict(zip(["l1", "l2"], (papers_ND @ labels_ND.T)[0].tolist(), strict=True))
    assert dict(zip(tagged[0].labels.ids, tagged[0].labels.scores, strict=True)) == pytest.approx(
        scores, abs=1e-5
    )
    assert [hit.rank for hit in tagged[0].labels] == [1, 2]
    assert library.tag(["Graphs"], ids=["p001"])[0].labels[0].title == "Graphs"


def test_tags_are_the_same_whether_or_not_the_library_has_their_vectors(
    make: Callable[..., Library], library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, ids = ["Graphs", "Plasma", "Optics"], ["p003", "p004"]
    others = make(PAPERS[:6], tasks=["search"]).tag(labels, ids=ids)
    encoded: list[int] = []
    encode = type(library.model).encode
    monkeypatch.setattr(
        type(library.model),
        "encode",
        lambda model, texts, **how: (encoded.append(len(texts)), encode(model, texts, **how))[1],
    )
    for own, other in zip(library.tag(labels, ids=ids), others, strict=True):
        assert own.labels.ids == other.labels.ids
        assert own.labels.scores == pytest.approx(other.labels.scores, abs=1e-5)
    assert encoded == [len(labels)]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "nothing to search for"),
        ({"text": "x", "vector": np.ones(16)}, "both a vector and texts"),
        ({"text": "x", "k": 0}, "no such page"),
        ({"text": "x", "k": 2.5}, "no such page"),
        ({"text": ["x", "y"]}, "text is not a string"),
        ({"text": "x", "min_score": 0.5, "words": 0.5}, "a threshold needs exact search"),
        ({"ids": ["p001"], "words": 0.5}, "BM25 needs text"),
        ({"text": "x", "words": 2}, "not a valid BM25 share"),
        ({"text": "x", "rerank": "model", "rerank_top": 0}, "rerank_top is below 1"),
        ({"text": "x", "rerank": "model", "offset": 91}, "rerank at least 101 on every page"),
        ({"ids": ["p001"], "rerank": "model"}, "a cross-encoder needs text"),
        ({"text": "x", "min_score": float("nan")}, "threshold is not a number"),
        ({"vector": np.ones((1, 16))}, "not a vector.*shape"),
        ({"ids": "p001"}, "ids is a string"),
        ({"text": "x", "only": "p001"}, "only is a string"),
        ({"text": "x", "exclude": "p001"}, "exclude is a string"),
        ({"text": "x", "where": "jear > 3"}, "cannot filter.*columns: id, title, abstract, year"),
        ({"text": "x", "where": "title = graphs"}, "texts in single quotes"),
        ({"text": "x", "where": "labels = 'a'"}, r"list_contains\(labels, 'VALUE'\)"),
        ({"text": "x", "where": "1=1; DROP VIEW papers"}, "cannot filter"),
        ({"text": "x", "where": "1=1) LIMIT (1"}, "cannot filter"),
        ({"text": "x", "where": "1=1) UNION ALL SELECT 99 WHERE (1=1"}, "cannot filter"),
        ({"text": "x", "where": "id IN (SELECT content FROM read_text('/etc/hosts'))"}, "disabled"),
        ({"text": "x", "where": ""}, "filter is empty"),
        ({"text": "x", "where": ["year"]}, "not a filter"),
    ],
)
def test_contradictions_are_refused(
    library: Library, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        library.search(**request_)
    assert str(error.value).count("Fix:") == 1


def test_unknown_names_are_suggested(library: Library) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'year'"):
        library.search("x", where={"yaer": 2000})
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        library.search("x", task="serach")
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        library.search("x", method="exat")
    with pytest.raises(DataError, match="use tag"):
        library.search("x", task="classification")
    with pytest.raises(DataError, match="no paper has this id.*did you mean 'p0"):
        library.tag(["Graphs"], ids=["p01"])


def test_ids_that_no_paper_can_have(library: Library) -> None:
    undecodable = "\udcff"  # a byte of a command line in another encoding
    wanted = library.search("x").ids
    assert library.search("x", exclude=[undecodable]).ids == wanted
    assert not library.search("x", only=[undecodable])
    with pytest.raises(DataError, match="no paper has this id"):
        library.recommend([undecodable])
    for taken in (True, 7.5, ["p00"], float("nan")):
        with pytest.raises(DataError, match="paper id is not a string"):
            library.search("x", exclude=[taken])
    assert library.search("x", exclude=[7]).ids == wanted  # "7", as the reader of files has it


def test_ids_come_from_a_column_of_a_frame(library: Library) -> None:
    ids = ["p001", "p002"]
    wanted = library.search(ids=ids, exclude=["p003"], only=library.ids()).ids
    for column in (np.array, pd.Series):
        given = {"ids": ids, "exclude": ["p003"], "only": library.ids()}
        assert library.search(**{name: column(x) for name, x in given.items()}).ids == wanted
    with pytest.raises(ConfigError, match="nothing to search for"):
        library.search(ids=pd.Series([], dtype=object))


def test_a_pickled_library_opens_its_folder(
    make: Callable[..., Library],
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One that had answered held a connection to DuckDB, which no other process takes."""
    folder = make(dated(20)).path
    monkeypatch.chdir(folder.parent)
    library = Library.open(folder.name, model=model_folder, light=True)
    question = {"text": "graph", "where": {"year": (2003, None)}, "words": 0.5}
    wanted, stored = library.search(**question), pickle.dumps(library)
    assert len(stored) < 1000
    monkeypatch.chdir(tmp_path.parent)
    copy = pickle.loads(stored)  # as in a process that was started elsewhere
    assert copy.search(**question).as_dicts() == wanted.as_dicts()
    assert type(copy._opened.encoder) is type(library._opened.encoder)


def test_columns_named_like_scores_hide_no_score(make: Callable[..., Library]) -> None:
    library = make([paper(i, score=50 + i, rank="A", percentile=None) for i in range(3)])
    (row,) = library.search("graph", k=1).as_dicts()
    hit = library.search("graph", k=1)[0]
    assert (row["rank"], row["score"]) == (1, round(hit.score, 4))
    assert (row["rank_"], row["score_"]) == ("A", hit.columns["score"])


def test_scores_of_tags_by_distance_are_distances(tmp_path: Path) -> None:
    model = SciMult.from_pretrained(save_tiny_model(tmp_path / "l2", similarity="l2"))
    library = made(tmp_path / "library", model, PAPERS[:3])
    papers_ND = model.encode(PAPERS[:3], task="classification", role="query")
    labels_ND = model.encode(
        [{"name": "Graphs"}, {"name": "Plasma"}], task="classification", role="candidate"
    )
    for tagged, paper_D in zip(library.tag(["Graphs", "Plasma"], k=9), papers_ND, strict=True):
        distances = np.linalg.norm(labels_ND - paper_D, axis=1).tolist()
        wanted = dict(zip(["Graphs", "Plasma"], distances, strict=True))
        found = {hit.id: -hit.score for hit in tagged.labels}
        assert found == pytest.approx(wanted, abs=1e-5)


def test_labels_are_a_list(library: Library) -> None:
    with pytest.raises(DataError, match="labels is a single label.*Fix: pass a list"):
        library.tag("Optics")
    with pytest.raises(DataError, match="label is given twice.*Optics.*its own id"):
        library.tag(["Optics", {"name": "Optics", "definition": "Of light"}])
    with pytest.raises(DataError, match="no labels given"):
        library.tag([])
    with pytest.raises(ConfigError, match="search"):
        library.tag(["Optics"], task="search")
    with pytest.raises(ConfigError, match="k must be at least 1"):
        library.tag(["Optics"], k=0)


def test_a_table_of_labels_is_read_by_row_and_a_string_is_no_list_of_ids(library: Library) -> None:
    labels = pd.DataFrame({"id": ["o", None], "name": ["Optics", "Plasma"]})
    (tagged,) = library.tag(labels, ids=["p001"])
    assert sorted(hit.id for hit in tagged.labels) == ["Plasma", "o"]
    with pytest.raises(ConfigError, match="ids is a string"):
        library.tag(["Optics"], ids="p001")


@pytest.mark.parametrize("name", ["", " ", "\u200b"])
def test_a_label_needs_a_name(library: Library, name: str) -> None:
    """Its id was the name, an empty one."""
    with pytest.raises(DataError, match="label 1 has no name.*Of light"):
        library.tag(["Graphs", {"name": name, "definition": "Of light"}])
    (tagged,) = library.tag([{"id": None, "name": "Optics"}], ids=["p001"])
    assert tagged.labels.ids == ["Optics"]
