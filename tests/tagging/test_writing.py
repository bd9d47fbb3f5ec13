"""Files of suggested tags, as other programs read them."""

from __future__ import annotations

from pathlib import Path

from scimult.retrieval.runs import read_run
from scimult.tagging.tagger import SuggestedTag
from scimult.tagging.writing import write_tags
from scimult.types import Text


def test_equal_scores_keep_their_order_in_a_run(tmp_path: Path) -> None:
    """trec_eval reads scores in single precision and orders equal ones by id, not by rank."""
    tags = [("b", 0.9), ("c", 0.9), ("a", 0.9), ("e", 0.89999999), ("d", 0.0), ("f", 0.0)]
    suggested = [SuggestedTag(name, name.upper(), score) for name, score in tags]
    paper = ("p", Text("paper", "Of it"))
    write_tags(tmp_path / "o.trec", [paper], lambda texts: [suggested], {})
    names = sorted(name for name, _ in tags)
    ranking = read_run(tmp_path / "o.trec", ["p"], names)
    assert [names[row] for row in ranking.rows_QK[0]] == [name for name, _ in tags]
    scores = [float(line.split()[4]) for line in (tmp_path / "o.trec").open()]
    assert all(abs(score - tag[1]) < 1e-6 for score, tag in zip(scores, tags, strict=True))
