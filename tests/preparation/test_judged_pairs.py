"""Raw judgments, hard negatives and judged links in a prepared folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.preparation.dataset import build_dataset
from tests.prepared_folders import citations, named_pairs
from tests.raw_corpus import (
    CITATIONS,
    PAPERS,
    QUERIES,
    raw_config,
    write_jsonl,
    write_tsv,
)


def test_judgments_are_positive_from_the_threshold_on(root: Path, tmp_path: Path) -> None:
    rows = [("q0", "p1", 0), ("q0", "p2", 1), ("q0", "p3", 2), ("q1", "p1", 2), ("q1", "p1", 2)]
    write_tsv(root / "qrels.tsv", ("query-id", "corpus-id", "score"), rows)
    write_jsonl(root / "queries.jsonl", QUERIES[:2])
    source = {
        "name": "judged",
        "papers": "papers.jsonl",
        "queries": "queries.jsonl",
        "judgments": "qrels.tsv",
        "score_threshold": 2,
    }
    refused = (
        r"query without a positive.*give it a positive with a score from score_threshold \(3\)"
    )
    with pytest.raises(DataError, match=refused):
        build_dataset(raw_config(root, sources=[{**source, "score_threshold": 3}]), tmp_path / "no")
    data = build_dataset(raw_config(root, sources=[source], dev_fraction=0), tmp_path / "out")[0]
    (train,) = data.pairs("train")
    ids = data.texts.ids
    assert named_pairs(data, [train]) == [
        ("judged/query:q0", "judged:p3"),
        ("judged/query:q1", "judged:p1"),
    ]
    assert [{ids[row] for row in pool} for pool in train.negatives] == [
        {"judged:p1", "judged:p2"},
        set(),
    ]
    assert data.manifest.sources[0].counts["repeated answers"] == 1
    assert [len(file) for file in data.pairs("dev")] == [0]


def test_a_hard_negative_of_a_pair_and_those_of_its_query(root: Path, tmp_path: Path) -> None:
    """Judged papers go with every pair of the query, in a table that has both kinds."""
    links = [("p1", "p2", 1, "p3"), ("p1", "p4", 1, ""), ("p1", "p5", 0, ""), ("p1", "p2", 1, "p4")]
    write_tsv(root / "links.tsv", ("query-id", "paper-id", "score", "negative-id"), links)
    source = {"name": "judged", "papers": "papers.jsonl", "links": "links.tsv"}
    data = build_dataset(raw_config(root, sources=[source], dev_fraction=0), tmp_path / "out")[0]
    (file,) = data.pairs("train")
    ids = [text.removeprefix("judged:") for text in data.texts.ids]
    pools = {
        ids[positive]: {ids[row] for row in pool}
        for (positive,), pool in zip(file.positives, file.negatives, strict=True)
    }
    # p4 was given as a negative of p2, but it is a positive of the same query.
    assert pools == {"p2": {"p3", "p5"}, "p4": {"p5"}}


def test_judged_links_and_references(root: Path, tmp_path: Path) -> None:
    links = [("p1", "p2", 2), ("p1", "p3", 1), ("p1", "p4", 0), ("p2", "p1", 1)]
    write_tsv(root / "links.tsv", ("query-id", "paper-id", "score"), links)
    source = {"name": "judged", "papers": "papers.jsonl", "links": "links.tsv"}
    source |= {"references": "citations.tsv", "score_threshold": 1.5}
    data = build_dataset(raw_config(root, sources=[source], dev_fraction=0), tmp_path / "out")[0]
    (file,) = data.pairs("train")
    assert file.task == "link_prediction"
    assert named_pairs(data, [file]) == [("judged:p1", "judged:p2")]
    (pool,) = ([data.texts.ids[row] for row in rows] for rows in file.negatives)
    assert pool == ["judged:p3", "judged:p4"]
    # References are used for mining, and make no pairs.
    assert len(citations(data)) == len(CITATIONS)


@pytest.mark.long
@pytest.mark.parametrize("column", ["score", "clicked"])
@pytest.mark.parametrize("separator", ["\t", ","])
def test_what_is_judged_irrelevant_is_no_positive(
    root: Path, tmp_path: Path, separator: str, column: str
) -> None:
    """Qrels that list irrelevant papers, given as positives, trained these as relevant."""
    rows = [f"query-id corpus-id {column}", "q0 p1 1", "q0 p2 0", "q1 p1 2"]
    table = root / ("qrels.csv" if separator == "," else "qrels.tsv")
    table.write_text("".join(row.replace(" ", separator) + "\n" for row in rows))
    write_jsonl(root / "queries.jsonl", QUERIES[:2])
    source = {"name": "s", "papers": "papers.jsonl", "queries": "queries.jsonl"}
    source["positives"] = table.name
    config = raw_config(root, sources=[source], dev_fraction=0)
    message = (
        r"qrels....:3: a positive's score is below.*'p2'.*give the file as judgments or clicks"
    )
    with pytest.raises(DataError, match=message):
        build_dataset(config, tmp_path / "out")
    table.write_text(table.read_text().replace(f"p2{separator}0", f"p2{separator}"))
    data = build_dataset(config, tmp_path / "out")[0]
    assert sum(map(len, data.pairs("train")[0].positives)) == 3


def test_a_bad_line_says_where_the_next_with_its_problem_is(root: Path, tmp_path: Path) -> None:
    rows = ["citing\tcited", "p1\tp2", "p1\tp99", "p2\tp2", "p99\tp1", "p2\tp98", "p3\tp97", ""]
    (root / "citations.tsv").write_text("\n".join(rows))
    more = r"tsv:3: .*'p99'.*\(and 2 more, the next on line 6 and 7\)"
    with pytest.raises(DataError, match=more):
        build_dataset(raw_config(root), tmp_path / "out")
    (root / "citations.tsv").write_text("\n".join([*rows[:2], *rows[3:]]))
    with pytest.raises(DataError, match=r"tsv:3: paper cites itself.*remove this line$"):
        build_dataset(raw_config(root), tmp_path / "out")


@pytest.mark.long
def test_two_teacher_scores_of_a_pair_are_found_in_two_files(tmp_path: Path) -> None:
    """Sources of one namespace may link the same papers; equal scores say the same."""
    write_jsonl(tmp_path / "papers.jsonl", PAPERS[:3])
    header = ("query-id", "paper-id", "score", "teacher")
    write_tsv(tmp_path / "one.tsv", header, [("p0", "p1", 1, 0.5), ("p0", "p2", 1, 2)])
    first = {"name": "one", "papers": "papers.jsonl", "links": "one.tsv"}
    second = {"name": "two", "namespace": "one", "links": "two.tsv"}
    config = raw_config(tmp_path, sources=[first, second], dev_fraction=0)
    write_tsv(tmp_path / "two.tsv", header, [("p1", "p0", 1, 3), ("p0", "p1", 0, 0.5)])
    scores = build_dataset(config, tmp_path / "out")[0].teacher_scores()
    assert scores is not None
    assert scores(np.array([0, 0, 1]), np.array([1, 2, 0])).tolist() == [0.5, 2, 3]
    write_tsv(tmp_path / "two.tsv", header, [("p1", "p0", 1, 3), ("p0", "p1", 0, 0.25)])
    where = r"two\.tsv:3: .*two different teacher scores.*0\.25.*the other is in .*one\.tsv, line 2"
    with pytest.raises(DataError, match=where):
        build_dataset(config, tmp_path / "out")
