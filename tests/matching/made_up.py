"""A made-up reviewer matching: vectors, judgments, and OpenReview's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.ragged import Ragged
from scimult.evaluation.task_data import Dataset, Reviewers
from scimult.retrieval.runs import Qrels, Ranking
from scimult.types import FloatArray, Text
from tests.raw_corpus import write_jsonl


def reviewer_dataset() -> tuple[Dataset, Ranking, tuple[FloatArray, FloatArray]]:
    """Return a data set whose queries judge all reviewers, all papers' scores, and vectors."""
    rng = np.random.default_rng(5)
    queries_QD = rng.normal(size=(6, 8)).astype(np.float32)
    papers_PD = rng.normal(size=(20, 8)).astype(np.float32)
    papers = Ragged.from_lists(rng.choice(20, size=n, replace=False) for n in (1, 2, 3, 5, 9))
    everyone = Ragged.from_lists([range(5)] * 6)
    judged = Qrels(everyone, Ragged(np.ones(30, np.int64), everyone.offsets), 5)
    reviewers = Reviewers([f"r{i}" for i in range(5)], papers, judged)
    texts = [Text("paper", "made up")]
    dataset = Dataset(
        "made up",
        "link_prediction",
        [f"q{i}" for i in range(6)],
        texts * 6,
        [f"p{i}" for i in range(20)],
        texts * 20,
        Qrels(Ragged.empty(6), Ragged.empty(6), 20),
        reviewers=reviewers,
    )
    scores_QP = queries_QD @ papers_PD.T
    order_QP = np.argsort(-scores_QP, axis=1)
    ranking = Ranking(order_QP, np.take_along_axis(scores_QP, order_QP, axis=1))
    return dataset, ranking, (queries_QD, papers_PD)


def note(name: str, title: str, abstract: str = "", **content: Any) -> dict[str, Any]:
    """Return a note of OpenReview's API 1."""
    return {"id": name, "content": {"title": title, "abstract": abstract, **content}}


def boxed(found: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a note of API 2."""
    content = {name: {"value": value} for name, value in found["content"].items()}
    return {**found, **fields, "content": content}


def write_venue(folder: Path) -> Path:
    """Write an OpenReview folder: three submissions, three reviewers, one without papers."""
    archives = folder / "archives"
    archives.mkdir(parents=True)
    shared = note("x1", "Star formation in dwarf galaxies")
    written = {
        "~Ada_L1": [
            shared,
            boxed(note("a1", "Galaxies", "Of stars.", venue="AAS 2020"), pdate=1577836800000),
        ],
        "~Bob_M1": [note("b1", "Graph neural networks", "Message passing on graphs.")],
        "~Cyd_N2": [
            note("c1", "Protein folding", "Structures of proteins."),
            note("x1", "Star formation in dwarf galaxies", "We observe dwarf galaxies."),
        ],
    }
    for name, notes in written.items():
        write_jsonl(archives / f"{name}.jsonl", notes)
    (archives / "~Idle_O1.jsonl").touch()
    submissions = [
        note("s1", "Graphs that pass messages", "Networks on graphs.", authorids=["~Bob_M1"]),
        note("s2", "How proteins fold", "Structures."),
        note("s3", "Dwarf galaxies", "Stars form."),
    ]
    write_jsonl(folder / "submissions.jsonl", submissions)
    return folder
