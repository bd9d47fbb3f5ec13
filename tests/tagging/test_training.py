"""How tagged papers are split for learning, weighing and calibration."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from scimult.errors import DataError, UnknownNameError
from scimult.inference import SciMult
from scimult.tagging import Concept, Tagger, Vocabulary
from scimult.tagging.incoming import tagged_papers, text_hashes
from scimult.tagging.sets import Hierarchy
from scimult.tagging.training import MEASURED, TaggedPapers, calibrate, split_papers, works_of
from scimult.types import Text
from tests.tagging.made_up import VOCABULARY, papers


def test_copies_of_a_paper_stay_together() -> None:
    """A set with all papers twice had 60 % right tags where 70 % were guaranteed."""
    texts = [Text("paper", f"On {row}", "Of it.") for row in range(500)]
    copies = [Text("paper", f"ON {row}:", "Of it") for row in range(500)]
    ids = [f"p{row}" for row in range(1000)]
    works = works_of(text_hashes([*texts, *copies]))
    parts = split_papers(ids, works)
    assert [len(part) for part in parts] == [800, 100, 100]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    learned, weighed, calibrated = (set((part % 500).tolist()) for part in parts)
    assert len(learned & weighed) + len(learned & calibrated) + len(weighed & calibrated) <= 2
    shuffled = np.random.default_rng(0).permutation(1000)
    again = split_papers([ids[row] for row in shuffled], works[shuffled])
    for part, other in zip(parts, again, strict=True):
        assert set(part.tolist()) == set(shuffled[other].tolist())


def test_other_texts_are_split_by_their_ids() -> None:
    """Texts that many papers have, as "Editorial", are texts of new papers too."""
    ids = [f"p{row}" for row in range(300)]
    order = sorted(range(300), key=lambda row: hashlib.sha256(ids[row].encode()).hexdigest())
    for texts in ([Text("paper", f"On {row}") for row in range(300)], [Text("paper", "On")] * 300):
        learning, weighing, calibrating = split_papers(ids, works_of(text_hashes(texts)))
        assert weighing.tolist() == sorted(order[:30])
        assert calibrating.tolist() == sorted(order[30:60])
        assert learning.tolist() == sorted(order[60:])


def test_held_out_probabilities_are_those_of_tags(model: SciMult, tmp_path: Path) -> None:
    """A broader concept gets the score of a narrower one, whose curve may be the higher one."""
    given = papers(400)
    tagger = Tagger.train(tmp_path / "t", VOCABULARY, given, model=model, hierarchy="closed")
    held_out = tagger._state.suggestions
    assert held_out is not None
    assert held_out.concepts_P is not None
    texts = [Text("paper", paper["title"], paper["abstract"]) for paper in given]
    _, _, rows = split_papers([paper["id"] for paper in given], works_of(text_hashes(texts)))
    texts = [texts[row] for row in rows]
    scores = tagger.scores(texts, model.encode(texts, task="classification"))
    found = scores[held_out.papers_P, held_out.concepts_P]
    np.testing.assert_allclose(held_out.probabilities_P, found, atol=1e-5)


@pytest.mark.parametrize("hierarchy", ["flat", "closed", "specific"])
def test_broader_concepts_are_tagged_unless_the_hierarchy_is_flat(
    model: SciMult, tmp_path: Path, hierarchy: Hierarchy
) -> None:
    given = papers(60)
    tagger = Tagger.train(tmp_path / "t", VOCABULARY, given, model=model, hierarchy=hierarchy)
    seen = {VOCABULARY[row].id for row in np.flatnonzero(tagger.seen_C)}
    tagged = {name for paper in given for name in paper["labels"]}
    assert seen == (tagged if hierarchy == "flat" else tagged | {"top"})


def test_unknown_and_ambiguous_tags_are_dropped_on_request_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = {"a": "Graph", "b": "Tree", "c": "Bank", "d": "Bank"}
    vocabulary = Vocabulary([Concept(key, name) for key, name in names.items()])
    tags = {"1": ["Graph", "Bank", "else"], "2": ["b", "else"], "3": []}
    some = [{"id": key, "title": "x", "labels": named} for key, named in tags.items()]
    ids, _, tags_NC = tagged_papers(some, vocabulary, closed=False, drop_unknown=True)
    assert ids == ["1", "2", "3"]
    assert tags_NC.toarray().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert "ignored 3 tags, unknown to the vocabulary or ambiguous, such as 'else', 'Bank'" in (
        caplog.text
    )
    with pytest.raises(DataError, match="paper '1': several concepts have this name.*c, d"):
        tagged_papers(some, vocabulary, closed=False, drop_unknown=False)


def test_an_unknown_hierarchy_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="hierarchy .*'close'.*did you mean 'closed'"):
        Tagger.train(tmp_path / "t", VOCABULARY, [], model="none", hierarchy="close")  # type: ignore[arg-type]


def test_the_calibration_error_is_that_of_the_suggestions_that_are_evaluated() -> None:
    """Not of the many below, which are wrong and known to be."""
    sure_BC = np.where(np.arange(60) < MEASURED, 5.0, -20.0) * np.ones((40, 1))
    right_BC = (sure_BC > 0) & (np.arange(40)[:, None] % 2 == 0)
    texts = [Text("paper", str(row)) for row in range(40)]
    tagged = TaggedPapers(list(map(str, range(40))), texts, sure_BC, csr_array(right_BC * 1.0))
    signals: Any = SimpleNamespace(seen_C=np.ones(60, dtype=bool), of=lambda _, given_BC: given_BC)
    fusion: Any = SimpleNamespace(logits=lambda given_BC, _: given_BC)
    many = Vocabulary([f"c{row}" for row in range(60)])
    *_, error = calibrate(signals, fusion, tagged, np.arange(40), many, "flat")
    # Even papers have all ten, odd ones none: what one half teaches is wrong of the other.
    assert error == pytest.approx((1 + 0) / 2, abs=0.01)


def test_broader_concepts_are_calibrated_by_the_log_odds_that_they_are_tagged_by() -> None:
    """Half of the papers have both concepts; the broader one's own log odds do not tell which."""
    even_B = np.arange(40) % 2 == 0
    logits_BC = np.stack([np.zeros(40), np.where(even_B, 10.0, -10.0)], axis=1)
    right_BC = np.stack([even_B, even_B], axis=1)
    texts = [Text("paper", str(row)) for row in range(40)]
    tagged = TaggedPapers(list(map(str, range(40))), texts, logits_BC, csr_array(right_BC * 1.0))
    seen_C = np.ones(2, dtype=bool)
    signals: Any = SimpleNamespace(seen_C=seen_C, of=lambda _, given_BC: given_BC)
    fusion: Any = SimpleNamespace(logits=lambda given_BC, _: given_BC)
    pair = Vocabulary([Concept("b", "Broader"), Concept("n", "Narrower", (), ("b",))])
    found = [
        calibrate(signals, fusion, tagged, np.arange(40), pair, hierarchy)[0]
        for hierarchy in ("closed", "flat")
    ]
    closed, flat = (curves.probabilities(logits_BC[1], seen_C)[0] for curves in found)
    assert flat == pytest.approx(0.5)
    assert closed < 0.35  # at the broader one's own log odds, no tag is right


def test_held_out_suggestions_are_the_most_probable_ones() -> None:
    """Those of the highest log odds were measured, whose curves differ: here other concepts.

    Concepts without tagged papers have low log odds, and are right wherever these are the highest.
    Where they are not, in even papers, they are as probable to the tagger, and wrong.
    """
    seen_C, even_B = np.arange(64) < 60, np.arange(400) % 2 == 0
    unseen_BC = np.array([-2.0, -2.1, -2.2, -3.0]) * np.ones((400, 1))
    spread_C = np.linspace(0, 3, 60)
    seen_BC = np.where(even_B[:, None], spread_C, spread_C - 10)
    logits_BC = np.concatenate([seen_BC, unseen_BC], axis=1)
    right_BC = np.concatenate([seen_BC > 2.99, (unseen_BC > -3) & ~even_B[:, None]], axis=1)
    texts = [Text("paper", str(row)) for row in range(400)]
    tagged = TaggedPapers(list(map(str, range(400))), texts, logits_BC, csr_array(right_BC * 1.0))
    signals: Any = SimpleNamespace(seen_C=seen_C, of=lambda _, given_BC: given_BC)
    fusion: Any = SimpleNamespace(logits=lambda given_BC, _: given_BC)
    many = Vocabulary([f"c{row}" for row in range(64)])
    curves, found, _ = calibrate(signals, fusion, tagged, np.arange(400), many, "flat")
    p_BC = curves.probabilities(logits_BC, seen_C)
    assert found.concepts_P is not None
    for paper in range(4):
        own = found.papers_P == paper
        assert found.ranks_P[own].tolist() == list(range(1, 51))
        wanted = np.argsort(-p_BC[paper], kind="stable")[:50]
        assert found.concepts_P[own].tolist() == wanted.tolist()
        assert (found.probabilities_P[own] == p_BC[paper, wanted]).all()
        assert (found.right_P[own] == right_BC[paper, wanted]).all()
    sure_P = (found.concepts_P >= 60) & (found.probabilities_P > 0.8)
    assert found.right_P[sure_P].mean() == 0.5
