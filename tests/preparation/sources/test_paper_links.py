"""Judged pairs of papers: SciDocs, PMC-Patients, the recommendation study."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.errors import ConfigError, DataError
from tests.public import Content, run, table

TEXTS = {
    name: {"paper_id": name, "title": f"On {name}", "abstract": "Text.", "authors": [], "year": 1}
    for name in ("s1", "s2", "s3", "unused")
}
SCIDOCS: dict[str, Content] = {
    "paper_metadata_view_cite_read.json": TEXTS,
    "paper_metadata_mag_mesh.json": TEXTS,
    "cite/val.qrel": "s1 0 s2 1\ns1 0 s3 0\n",
    "cite/test.qrel": "s2 0 s3 1\n",
    "mag/train.csv": "pid,class_label\ns1,0\ns2,18\n",
    "names.tsv": table(("id", "name"), (0, "Art"), (18, "Sociology")),
}


def test_scidocs_links_take_the_papers_that_they_name(tmp_path: Path) -> None:
    found = run(tmp_path, "scidocs", SCIDOCS, links=["cite"])
    assert found.pairs("scidocs-cite", "links") == [("s1", "s2", "1"), ("s1", "s3", "0")]
    assert [row["id"] for row in found.rows("scidocs-cite", "papers")] == ["s1", "s2", "s3"]


def test_scidocs_classes_have_the_names_that_are_given(tmp_path: Path) -> None:
    names = {"mag": "names.tsv"}
    found = run(tmp_path, "scidocs", SCIDOCS, links=[], classes=["mag"], names=names)
    labels = {row["id"]: row["name"] for row in found.rows("scidocs-mag", "labels")}
    papers = found.rows("scidocs-mag", "papers")
    assert {row["id"]: labels[row["labels"][0]] for row in papers} == {
        "s1": "Art",
        "s2": "Sociology",
    }
    assert "classified papers without a text" not in found.counts("scidocs-mag")
    more = {"mag/train.csv": "pid,class_label\ns1,0\ns9,18\ns9,0\ns8,0\ns1,18\ns1,0\n"}
    found = run(
        tmp_path / "more", "scidocs", SCIDOCS | more, links=[], classes=["mag"], names=names
    )
    (paper,) = found.rows("scidocs-mag", "papers")
    assert (paper["id"], paper["labels"]) == ("s1", ["0", "18"])
    assert found.counts("scidocs-mag")["classified papers without a text"] == 2
    with pytest.raises(ConfigError, match="has only numbers"):
        run(tmp_path, "scidocs", SCIDOCS, classes=["mag"])


QRELS = ("query-id", "corpus-id", "score")
PATIENTS: dict[str, Content] = {
    "queries/train_queries.jsonl": [{"_id": f"{i}-1", "text": f"A patient, {i}."} for i in (1, 2)],
    "PPR/corpus.jsonl": [
        {"_id": f"{i}-1", "title": "", "text": f"A patient, {i}."} for i in (1, 2, 3)
    ],
    "PPR/qrels_train.tsv": table(QRELS, ("1-1", "2-1", 1), ("2-1", "3-1", 2)),
    "PAR/corpus.jsonl": [{"_id": "77", "title": "A case", "text": "Of it."}],
    "PAR/qrels_train.tsv": table(QRELS, ("1-1", "77", 1)),
}


def test_patients_are_papers_without_a_title(tmp_path: Path) -> None:
    found = run(tmp_path, "pmc-patients", PATIENTS, parts=["PPR", "PAR"])
    assert found.pairs("pmc-patients-ppr", "links") == [("1-1", "2-1", "1"), ("2-1", "3-1", "2")]
    assert found.rows("pmc-patients-par", "papers") == [
        {"id": "77", "title": "A case", "abstract": "Of it."},
        {"id": "1-1", "title": "", "abstract": "A patient, 1."},
        {"id": "2-1", "title": "", "abstract": "A patient, 2."},
    ]
    assert found.pairs("pmc-patients-par", "links") == [("1-1", "77", "1")]
    assert [found.counts(f"pmc-patients-{part}")["queries"] for part in ("ppr", "par")] == [2, 2]


STUDY = ("PaperId", "RecommendedPaperId", "Method", "StudyScore", "Similarity")
RECOMMENDATION: dict[str, Content] = {
    "user_study_results.tsv": table(
        STUDY,
        (5, 6, "Content", 4, 0.7),
        (5, 7, "Behavior", 1, 0.6),
        (5, 8, "Content", "", 0.5),
        (5, 9, "Both", 5, 0.5),
    ),
    "papers.jsonl": [{"id": i, "title": f"Paper {i}", "abstract": ""} for i in (5, 6, 7, 8)],
}


def test_recommendations_without_score_or_text_are_counted(tmp_path: Path) -> None:
    found = run(tmp_path, "recommendation", RECOMMENDATION)
    assert found.pairs("recommendation", "links") == [("5", "6", "4"), ("5", "7", "1")]
    counts = found.counts("recommendation")
    assert counts["rows without a score"] == 1
    assert counts["links without a text"] == 1
    data = found.prepare(tmp_path / "out")
    (file,) = data.pairs("train")
    names = data.texts.ids
    assert [names[row] for row in file.positives.values] == ["recommendation:6"]
    assert [names[row] for row in file.negatives.values] == ["recommendation:7"]


@pytest.mark.parametrize(
    ("source", "files", "options", "fix"),
    [
        ("recommendation", {"user_study_results.tsv": ""}, {}, "write id (of MAG), title and abs"),
        ("pmc-patients", {"PPR/corpus.jsonl": ""}, {"parts": ["PAR"]}, "it is not distributed"),
        (
            "scidocs",
            SCIDOCS,
            {"classes": ["mag"], "links": [], "names": {"mag": "no.tsv"}},
            "SciDocs has only numbers",
        ),
        (
            "multi-objective-contexts",
            {"arXiv_src_2007_068.jsonl": ""},
            {},
            "arXiv_src_*.jsonl, use scimult prepare unarxive",
        ),
    ],
)
def test_nobody_is_told_to_download_what_is_not_distributed(
    tmp_path: Path, source: str, files: dict[str, Content], options: dict[str, object], fix: str
) -> None:
    with pytest.raises(DataError, match="file does not exist") as caught:
        run(tmp_path, source, files, **options)
    assert fix in str(caught.value).partition("Fix: ")[2]


@pytest.mark.parametrize(
    ("source", "files", "problem"),
    [
        ("scidocs", SCIDOCS | {"cite/val.qrel": "s1 0 s2\n"}, "wrong number of values"),
        ("scidocs", SCIDOCS | {"cite/val.qrel": "s1 0 s9 1\n"}, "without a text: 1 of 1"),
        ("pmc-patients", PATIENTS | {"PPR/qrels_train.tsv": "no\theader\n"}, "lacks the column"),
        (
            "pmc-patients",
            PATIENTS | {"queries/train_queries.jsonl": [{"_id": "9-1"}]},
            "missing field 'text'",
        ),
        (
            "recommendation",
            {"papers.jsonl": [{"id": 5, "title": "A"}]},
            "user_study_results.tsv",
        ),
        (
            "recommendation",
            RECOMMENDATION | {"user_study_results.tsv": table(STUDY, (5, 6, "Both", "high", 1))},
            "'StudyScore' is not a finite number",
        ),
    ],
)
def test_bad_downloads(
    tmp_path: Path, source: str, files: dict[str, Content], problem: str
) -> None:
    options = {"links": ["cite"]} if source == "scidocs" else {}
    with pytest.raises(DataError) as caught:
        run(tmp_path, source, files, **options)
    assert problem in str(caught.value)
    assert not (tmp_path / "raw").exists()
