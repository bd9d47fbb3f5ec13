"""The tagger on MeSH terms of real papers, and vocabularies of the shared data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from scimult.data.lines import read_jsonl
from scimult.data.records import Rejects
from scimult.inference import SciMult
from scimult.tagging import Tagger, Vocabulary, read_vocabulary
from scimult.tagging.evaluating import evaluate_tagger
from scimult.tagging.names import NameFinder

pytestmark = pytest.mark.data
_MOST_FREQUENT = 200


@pytest.fixture(scope="module")
def mesh(scimult_data: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return some training and test papers."""
    folder = scimult_data / "eval" / "pubmedqa_mesh"
    with (folder / "split.csv").open() as file:
        split = {row["id"]: row["split"] for row in csv.DictReader(file)}
    rows = [one.fields for one in read_jsonl(folder / "papers.jsonl.gz", Rejects())]
    train, test = ([row for row in rows if split[row["id"]] == part] for part in ("train", "test"))
    return train[:350], test[:120]


def test_names_of_cora_and_its_hierarchy(scimult_data: Path) -> None:
    vocabulary = read_vocabulary(scimult_data / "train" / "cora" / "labels.jsonl")
    assert len(vocabulary) == 81
    assert vocabulary.has_hierarchy
    below = [row for row in range(81) if len(vocabulary.parents[row])]
    assert all(vocabulary.ancestors(row) for row in below)


@pytest.mark.long
def test_tags_beat_those_of_the_nearest_papers_and_reach_the_target_precision(
    scimult_data: Path, mesh: Any, model: SciMult, tmp_path: Path
) -> None:
    """The tiny model is untrained: names, words and neighbours by words do the work."""
    train, test = mesh
    terms = read_vocabulary(scimult_data / "eval" / "pubmedqa_mesh" / "labels.jsonl")
    vocabulary = Vocabulary(terms[:_MOST_FREQUENT])
    known = set(vocabulary.ids)
    train, test = (
        [{**paper, "labels": [tag for tag in paper["labels"] if tag in known]} for paper in part]
        for part in (train, test)
    )
    tagger = Tagger.train(tmp_path / "mesh", vocabulary, train, model=model)
    facts = evaluate_tagger(tagger, test, precision=0.5)
    assert facts["at_precision"]["measured"] >= 0.5
    assert facts["at_precision"]["tags_per_paper"] > 2
    assert facts["expected_calibration_error"] < 0.1
    assert facts["all"]["ndcg@10"] > 0.5
    # Tags of the 15 nearest papers by scikit-learn's tf-idf.
    text = [f"{paper['title']} {paper['abstract']}" for paper in (*train, *test)]
    rows = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform(text)
    near = np.asarray((rows[len(train) :] @ rows[: len(train)].T).todense())
    hits = []
    for paper, scores in zip(test, near, strict=True):
        votes: dict[str, float] = {}
        for row in np.argsort(-scores)[:15]:
            for tag in train[row]["labels"]:
                votes[tag] = votes.get(tag, 0) + scores[row]
        best = sorted(votes, key=lambda tag: -votes[tag])[:5]
        hits.append(len(set(best) & set(paper["labels"])) / 5)
    assert facts["all"]["precision@5"] > np.mean(hits)
    names = NameFinder(concept.names for concept in vocabulary)
    assert sum(len(names.find(paper["abstract"])) for paper in test) > len(test)
