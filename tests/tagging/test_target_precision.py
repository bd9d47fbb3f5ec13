"""A target precision holds on new papers, and messages name one that can."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scimult.arrays import load_arrays, save_arrays
from scimult.errors import ConfigError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.tagging import Concept, Tagger, Vocabulary
from scimult.tagging.evaluating import evaluate_tagger
from scimult.tagging.sets import Hierarchy
from tests.tagging.made_up import SUBJECTS, VOCABULARY, papers

NEW = papers(120, seed=7)


def test_a_target_precision_holds_for_new_papers(tagger: Tagger) -> None:
    for precision in (0.5, 0.7):
        found = tagger.tag(NEW, k=None, precision=precision, evidence=False)
        pairs = [
            (tag.id in p["labels"]) for p, tags in zip(NEW, found, strict=True) for tag in tags
        ]
        assert len(pairs) > 50
        assert np.mean(pairs) >= precision
    refusal = r"no threshold guarantees.*0\.99.*Fix: request.*leave out the precision"
    with pytest.raises(ConfigError, match=refusal):
        tagger.tag(NEW, precision=0.99)


@pytest.mark.parametrize("hierarchy", ["flat", "specific"])
def test_a_target_precision_holds_without_the_safest_tags(
    tagger: Tagger, hierarchy: Hierarchy
) -> None:
    """Half of the subjects are told by their words; the others are wrong half of the time."""
    state = tagger._state
    assert state.suggestions is not None
    concepts_P = state.suggestions.concepts_P
    assert concepts_P is not None
    names = [concept.id for concept in VOCABULARY]
    safe = [f"c/{word}" for word in SUBJECTS[:5]]
    safe_P = np.isin(concepts_P, [names.index(name) for name in safe])
    p = np.where(safe_P, 0.9, state.suggestions.probabilities_P)
    right_P = safe_P | (np.arange(len(p)) % 2 == 0)
    made_up = replace(state.suggestions, probabilities_P=p, right_P=right_P)
    doubtful = Tagger(replace(state, suggestions=made_up), tagger.model)
    assert doubtful.tag(NEW, k=None, precision=0.6, evidence=False, hierarchy=hierarchy)
    with pytest.raises(ConfigError, match="no threshold guarantees"):
        doubtful.tag(NEW, k=None, precision=0.6, exclude=safe, hierarchy=hierarchy)


def test_a_tagger_of_an_earlier_version_guarantees_no_precision(
    folder: Path, model: SciMult, tmp_path: Path
) -> None:
    """It counted copies as further papers, and measured other tags than it would return now."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = read_json(copy / "tagger.json")
    del content["measured"]
    write_json(copy / "tagger.json", content)
    arrays = load_arrays(copy / "suggestions.npz")
    del arrays["concepts_P"], arrays["works_P"]
    save_arrays(copy / "suggestions.npz", **arrays)
    earlier = Tagger.open(copy, model=model)
    for options in ({}, {"exclude": ["Science"]}, {"hierarchy": "specific"}):
        with pytest.raises(ConfigError, match="an earlier version.*train the tagger again"):
            earlier.tag(NEW, k=None, precision=0.5, evidence=False, **options)
    best = {"k": 3, "evidence": False}
    assert earlier.tag(NEW, **best) == Tagger.open(folder, model=model).tag(NEW, **best)
    assert evaluate_tagger(earlier, papers(20), precision=0.5)["at_precision"]["measured"] is None


def test_the_precision_in_the_message_is_attainable(tagger: Tagger) -> None:
    with pytest.raises(ConfigError, match=r"request at most 0\.\d+,") as caught:
        tagger.tag(NEW, k=None, precision=0.999)
    most = float(str(caught.value).split("request at most ")[1].split(",")[0])
    assert tagger.tag(NEW, k=None, precision=most, evidence=False)
    with pytest.raises(ConfigError):
        tagger.tag(NEW, k=None, precision=most + 0.01)


def test_a_precision_is_of_no_more_tags_than_it_was_measured_on(
    model: SciMult, tmp_path: Path
) -> None:
    """The best 50 concepts of each held-out paper, whatever ``k`` asks for."""
    many = Vocabulary([*VOCABULARY, *(Concept(f"x{n}", f"Extra {n}") for n in range(60))])
    tagger = Tagger.train(tmp_path / "many", many, papers(80), model=model)
    suggestions = tagger._state.suggestions
    assert suggestions is not None
    right_P = np.ones_like(suggestions.right_P)
    sure = replace(suggestions, right_P=right_P, probabilities_P=0.0 * right_P)
    certain = Tagger(replace(tagger._state, suggestions=sure), model)
    for excluded in ((), ["c/none"]):
        [tags] = certain.tag(NEW[:1], k=80, precision=0.5, exclude=excluded, evidence=False)
        assert len(tags) in (50 - len(excluded), 50)
    [tags] = certain.tag(NEW[:1], k=80, threshold=0.0, evidence=False)
    assert len(tags) == 80
