"""A download without any pair left: one error, with counts of read and left-out records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.errors import DataError
from tests.public import Content, run, table

# As in SPECTER's official sample, the graph names papers without texts.
SPECTER: dict[str, Content] = {
    "data.json": {"a": {"b": {"count": 5}, "c": {"count": 1}}, "d": {"e": {"count": 5}}},
    "metadata.json": {name: {"title": f"On {name}", "abstract": "Text."} for name in "ae"},
}
CORPUS: dict[str, Content] = {
    "corpus.jsonl": [{"_id": "d1", "title": "One", "text": "First."}],
    "queries.jsonl": [{"_id": "q1", "text": "find"}],
    "qrels/train.tsv": table(("query-id", "corpus-id", "score")),
}
STUDY = table(
    ("PaperId", "RecommendedPaperId", "StudyScore"), (5, 6, 4), (5, 7, 1), (8, 9, 5), (5, 5, 5)
)
PAPERS = "id,title,abstract,labels\n1,A,Text.,x\n2,B,Text.,x\n"
LINKS: dict[str, Any] = {"papers": {"file": "p.csv"}, "links": {"file": "l.tsv"}}
LINKED: dict[str, Content] = {
    "p.csv": PAPERS,
    "l.tsv": table(("query-id", "paper-id", "score"), (1, 7, 1), (1, 2, 0)),
}

CASES: list[tuple[str, dict[str, Content], dict[str, Any], list[str]]] = [
    (
        "specter",
        SPECTER,
        {"skip_bad": True},
        ["no link is left in 'specter'; read: papers: 2; queries: 2", "left out: 3 as in", ":1: "],
    ),
    (
        "specter",
        {"data.json": {"a": {"e": {"count": 1}}}, "metadata.json": SPECTER["metadata.json"]},
        {},
        ["no link has a score of 5", "queries without a cited paper: 1"],
    ),
    (
        "beir",
        CORPUS,
        {},
        ["no judgment is left in 'beir'; read: papers: 1; queries without a positive: 1"],
    ),
    (
        "recommendation",
        {"user_study_results.tsv": STUDY, "papers.jsonl": [{"id": 5, "title": "Five"}]},
        {},
        ["no link is left", "rows: 4", "links without a text: 3"],
    ),
    (
        "recommendation",
        {
            "user_study_results.tsv": STUDY,
            "papers.jsonl": [{"id": 5, "title": "Five"}, {"id": 7, "title": "Seven"}],
        },
        {},
        ["no link has a score of 4"],
    ),
    ("table", LINKED, {**LINKS, "dangling": {"links": "drop"}}, ["no link has a score of 1"]),
    (
        "table",
        {**LINKED, "l.tsv": table(("query-id", "paper-id"), (1, 7))},
        {**LINKS, "skip_bad": True},
        ["no link is left", "left out: 1 as in", "l.tsv:2: pair names a paper without a text"],
    ),
    (
        "table",
        {"p.csv": "id,title\n,A\n"},
        {"papers": {"file": "p.csv"}, "skip_bad": True},
        ["no paper is left in 'table'; read: nothing; left out: 1 as in", "'id' is empty"],
    ),
    (
        "dpr",
        {"train.json": [{"question": "who?", "positive_ctxs": []}]},
        {},
        ["no paper is left", "questions without a positive: 1"],
    ),
]


@pytest.mark.parametrize(("source", "files", "options", "said"), CASES)
def test_one_error_says_what_was_read_and_left_out(
    tmp_path: Path,
    source: str,
    files: dict[str, Content],
    options: dict[str, Any],
    said: list[str],
) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, source, files, **options)
    message = str(caught.value)
    assert all(part in message for part in said), message
    assert message.count("Fix: ") == 1
    assert not (tmp_path / "raw").exists()


def test_labels_that_no_paper_has_train_nothing(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "p.csv": "id,title,abstract\n1,A,Text.\n2,B,Text.\n",
        "labels.csv": "id,name,definition\nx,X,About x.\n",
        "c.tsv": table(("citing", "cited"), (1, 2)),
    }
    tables = {"papers": "p.csv", "labels": "labels.csv", "citations": "c.tsv"}
    options = {what: {"file": name} for what, name in tables.items()}
    found = run(tmp_path, "table", files, **options)
    assert found.conversion.configs[0].parts == ["citations"]
    assert "table: no paper has a label: the labels train nothing" in found.conversion.notes
    assert len(found.rows("table", "labels")) == 1
