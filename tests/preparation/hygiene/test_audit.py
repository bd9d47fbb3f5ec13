"""Evaluation sets in training data: counts against brute-force comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.hygiene.audit import AuditedSet, audit
from scimult.types import Text
from tests.raw_corpus import raw_config, write_jsonl, write_raw, write_tsv

WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("alo", "eni", "iru", "omu")]


def _paper(draw: np.random.Generator, number: int) -> dict[str, str]:
    words = draw.choice(WORDS, size=45).tolist()
    return {
        "id": f"p{number}",
        "title": " ".join(words[:7]).capitalize() + f" {number}",
        "abstract": " ".join(words[7:]) if number % 4 else "",
    }


def _prepared(folder: Path, draw: np.random.Generator) -> tuple[PreparedData, list[dict[str, str]]]:
    papers = [_paper(draw, number) for number in range(60)]
    cited = {(int(a), int(b)) for a, b in draw.integers(0, 60, size=(150, 2)) if a != b}
    write_jsonl(folder / "papers.jsonl", papers)
    write_tsv(folder / "citations.tsv", ("citing", "cited"), [(f"p{a}", f"p{b}") for a, b in cited])
    source = {"name": "toy", "papers": "papers.jsonl", "citations": "citations.tsv"}
    tree = {"root": str(folder), "sources": [source], "dev_fraction": 0.3}
    build_dataset(validate(DatasetConfig, tree), folder / "out")
    return PreparedData.open(folder / "out"), papers


def _copy(draw: np.random.Generator, paper: dict[str, str], way: int) -> Text:
    """Return the paper unchanged, with another case, with a word changed, or another one."""
    title, body = paper["title"], paper["abstract"]
    if way == 1:
        return Text("paper", title.upper().replace(" ", " - "), body + "!")
    if way == 2:
        return Text("paper", f"{title} revised", body + " anew")
    if way == 3:
        return Text("paper", "Titled anew " + " ".join(draw.choice(WORDS, size=5)), body[:100])
    return Text("paper", title, body)


def _set(draw: np.random.Generator, papers: list[dict[str, str]]) -> AuditedSet:
    chosen = draw.permutation(60)[:50]
    texts = [_copy(draw, papers[place], int(draw.integers(0, 4))) for place in chosen]
    ids = [f"p{place}" if place % 2 else f"other{place}" for place in chosen]
    relevant = [np.unique(draw.integers(0, 30, size=8)) for _ in range(20)]
    return AuditedSet(ids[:20], texts[:20], ids[20:], texts[20:], relevant)


def _words(text: Text, part: str = "both") -> list[str]:
    return re.findall(r"[a-z0-9]+", (text.title if part == "title" else text.joined).lower())


def _same(first: Text, second: Text) -> bool:
    titles = ["".join(_words(text, "title")) for text in (first, second)]
    if titles[0] == titles[1] and len(titles[0]) >= 20:
        return True
    words = [_words(text) for text in (first, second)]
    if words[0] == words[1]:
        return True
    grams = [{tuple(some[i : i + 3]) for i in range(len(some) - 2)} for some in words]
    union = len(grams[0] | grams[1])
    return min(map(len, words)) >= 25 and len(grams[0] & grams[1]) >= 0.8 * union


def _naive(data: PreparedData, entry: AuditedSet) -> dict[str, Any]:
    """Compare every text with every text, and every pair with every pair."""
    trained = data.texts.texts(range(len(data.texts)))

    def rows(text: Text) -> list[int]:
        return [row for row, other in enumerate(trained) if _same(text, other)]

    pairs = [
        (int(query), int(positive))
        for file in data.pairs("train")
        for query, positives in zip(file.queries, file.positives, strict=True)
        for positive in positives
    ]
    assert entry.relevant is not None
    answers = {int(row) for found in entry.relevant for row in found}
    known = 0
    for query, found in zip(entry.queries, entry.relevant, strict=True):
        for row in found:
            answers_to = rows(entry.candidates[row])
            meant = [{a, b} for a in rows(query) for b in answers_to]
            known += any({c, d} in meant for c, d in pairs)
    return {
        "query": sum(bool(rows(text)) for text in entry.queries),
        "answer": sum(bool(rows(entry.candidates[row])) for row in answers),
        "candidate": sum(
            bool(rows(text)) for row, text in enumerate(entry.candidates) if row not in answers
        ),
        "pairs_found": known,
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_comparing_everything(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    data, papers = _prepared(tmp_path, draw)
    entry = _set(draw, papers)
    found = audit(data, {"toy": entry})["toy"]
    naive = _naive(data, entry)
    assert {**found["found"], "pairs_found": found["pairs_found"]} == naive
    assert found["pairs_found"] > 0
    assert sum(found["found"].values()) == sum(found["ways"].values())
    assert sum(found["texts"].values()) == 50
    assert found["pairs"] == sum(map(len, entry.relevant or ()))
    ids = [*entry.query_ids, *entry.candidate_ids]
    assert sum(found["ids"].values()) == sum(name.startswith("p") for name in ids)


@pytest.mark.long
def test_labels_are_compared_by_name_and_pairs_with_them_are_found(tmp_path: Path) -> None:
    build_dataset(raw_config(write_raw(tmp_path / "raw")), tmp_path / "out")
    data = PreparedData.open(tmp_path / "out")
    [file] = [file for file in data.pairs("train") if file.task == "classification"]
    paper = data.texts.text(int(file.queries[0]))
    trained = [data.texts.text(int(row)).title for row in file.positives[0]]
    longer = Text("paper", f"{paper.title} of a title that is long enough", paper.body)
    labels = [Text("label", trained[0].upper()), Text("label", "Another")]
    rows = [np.array([0, 1]), np.array([0])]
    entry = AuditedSet(["a", "b"], [paper, longer], ["x", "y"], labels, rows)
    found = audit(data, {"toy": entry})["toy"]
    assert found["found"] == {"query": 1, "answer": 1, "candidate": 0}
    assert (found["pairs"], found["pairs_found"]) == (3, 1)


@pytest.mark.long
def test_a_set_without_pairs_reports_none(tmp_path: Path) -> None:
    build_dataset(raw_config(write_raw(tmp_path / "raw")), tmp_path / "out")
    data = PreparedData.open(tmp_path / "out")
    found = audit(data, {"toy": AuditedSet(["p1"], [Text("paper", "Unheard of")], [], [])})["toy"]
    assert "pairs" not in found
    assert found["texts"] == {"query": 1, "answer": 0, "candidate": 0}
    assert found["ids"]["query"] == 1
    assert found["found"]["query"] == 0
    assert json.dumps(found)


@pytest.mark.long
@pytest.mark.data
def test_the_papers_of_vis_are_found_as_their_ids_say(tmp_path: Path, scimult_data: Path) -> None:
    """Both parts come from one source and have its DOIs as ids."""
    from scimult.data.records import Rejects
    from scimult.evaluation.datasets import read_dataset
    from scimult.evaluation.suites import load_suite
    from scimult.evaluation.task_data import Dataset

    root = scimult_data / "train"
    source = {"name": "vis", "papers": "vis/papers.jsonl.gz", "citations": "vis/citations.tsv"}
    tree = {"root": str(root), "sources": [source]}
    build_dataset(validate(DatasetConfig, tree), tmp_path / "out")
    data = PreparedData.open(tmp_path / "out")
    benchmark = load_suite("first").benchmarks["vis_cite"]
    test = read_dataset("vis_cite", benchmark, scimult_data / "eval", "", Rejects())
    assert isinstance(test, Dataset)
    judged = zip(test.qrels.rows, test.qrels.grades, strict=True)
    relevant = [rows[grades > 0] for rows, grades in judged]
    entry = AuditedSet(test.query_ids, test.queries, test.candidate_ids, test.candidates, relevant)
    found = audit(data, {"vis_cite": entry})["vis_cite"]
    trained = {name.partition(":")[2] for name in data.texts.ids}
    known = len(trained & set(test.candidate_ids))
    assert found["ids"]["answer"] + found["ids"]["candidate"] == known > 3000
    # A few papers have another id, or a title too short to compare.
    assert abs(found["found"]["answer"] + found["found"]["candidate"] - known) < 12
    assert found["pairs_found"] == 0
