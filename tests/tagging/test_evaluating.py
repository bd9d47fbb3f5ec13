"""Evaluation of a tagger on tagged papers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.errors import ConfigError
from scimult.tagging import Tagger
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
