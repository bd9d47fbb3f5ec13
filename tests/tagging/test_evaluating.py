"""Evaluation of a tagger on tagged papers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.errors import ConfigError
from scimult.tagging import Tagger
from scimult.tagging.calibration import expected_calibration_error
from scimult.tagging.evaluating import evaluate_tagger
from tests.tagging.made_up import papers


def test_evaluation_on_papers_of_the_training_warns(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their scores were reported as those of new papers."""
    tagger = Tagger.open(folder)
    new = papers(40, seed=9)
    assert evaluate_tagger(tagger, new)["trained_on"] == 0
    assert caplog.messages == []
    renamed = [{**paper, "id": f"other-{paper['id']}"} for paper in papers(400)[-30:]]
    assert evaluate_tagger(tagger, [*new, *renamed])["trained_on"] == 30
    (message,) = caplog.messages
    assert message.startswith("the tagger was trained on 30 of 70 papers")


def test_the_numbers_are_those_of_the_suggestions(folder: Path) -> None:
    tagger, some = Tagger.open(folder), papers(60, seed=9)
    for paper in some[:5]:
        paper["labels"] += ["top", "c/graph/deep"]  # which no paper of the training has
    names = tagger.vocabulary.ids
    gold = [set(paper["labels"]) for paper in some]
    assert tagger.hierarchy == "flat"
    facts = evaluate_tagger(tagger, some, precision=0.6)
    unseen = {name for name, seen in zip(names, tagger.seen_C, strict=True) if not seen}
    for group, members in {"all": set(names), "unseen": unseen}.items():
        rows = [n for n, tags in enumerate(gold) if tags & members]
        lists = tagger.tag(some, k=5, exclude=set(names) - members, evidence=False)
        hits = {n: len({tag.id for tag in lists[n]} & gold[n]) for n in rows}
        recall = np.mean([hits[n] / len(gold[n] & members) for n in rows])
        assert facts[group]["papers"] == len(rows)
        assert facts[group]["recall@5"] == pytest.approx(recall)
        precision = np.mean([hits[n] / 5 for n in rows])
        assert facts[group]["precision@5"] == pytest.approx(precision)
    best = [
        (tag.score, tag.id in tags)
        for tags, suggested in zip(gold, tagger.tag(some, k=10, evidence=False), strict=True)
        for tag in suggested
    ]
    error = expected_calibration_error(*map(np.array, zip(*best, strict=True)))
    assert facts["expected_calibration_error"] == pytest.approx(error)
    lists = tagger.tag(some, k=None, precision=0.6, evidence=False)
    right = [tag.id in tags for tags, found in zip(gold, lists, strict=True) for tag in found]
    at = facts["at_precision"]
    assert at["measured"] == pytest.approx(np.mean(right))
    assert at["tags_per_paper"] == pytest.approx(len(right) / 60)
    assert at["share_of_gold"] == pytest.approx(sum(right) / sum(map(len, gold)))


def test_a_precision_out_of_reach_leaves_the_other_metrics(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The evaluation ended without any."""
    tagger = Tagger.open(folder)
    facts = evaluate_tagger(tagger, papers(40, seed=9), precision=0.9999)
    none = {"wanted": 0.9999, "measured": None, "tags_per_paper": 0.0, "share_of_gold": 0.0}
    assert facts["at_precision"] == none
    assert facts["all"]["ndcg@10"] > 0
    (message,) = caplog.messages
    assert message.startswith("no tags at the target precision: no threshold guarantees")
    with pytest.raises(ConfigError, match="not between 0 and 1"):
        evaluate_tagger(tagger, papers(40, seed=9), precision=1.5)
