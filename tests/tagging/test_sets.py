"""Sets of concepts are consistent with the hierarchy, whatever the scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.inference import SciMult
from scimult.tagging import Concept, Tagger, Vocabulary
from scimult.tagging.calibration import Suggestions
from scimult.tagging.sets import Hierarchy, as_selected, best_first, raised, select_tags
from tests.tagging.made_up import VOCABULARY, papers

NEW = papers(40, seed=9)


@st.composite
def scored(draw: st.DrawFn) -> tuple[Vocabulary, np.ndarray]:
    """Return a vocabulary with up to three parents per concept, and scores with many ties."""
    size = draw(st.integers(1, 14))
    order = draw(st.permutations(range(size)))
    above = [
        draw(st.sets(st.sampled_from(order[:i]), max_size=3)) if i else set() for i in range(size)
    ]
    parents = dict(zip(order, above, strict=True))
    vocabulary = Vocabulary(
        Concept(str(row), str(row), broader=tuple(map(str, sorted(parents[row]))))
        for row in range(size)
    )
    scores = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    return vocabulary, np.array(scores) / 5


@given(scored())
def test_raised_probabilities_are_the_largest_below(given: tuple[Vocabulary, np.ndarray]) -> None:
    vocabulary, scores = given
    found = raised(scores[None], vocabulary)[0]
    for row in range(len(vocabulary)):
        below = [other for other in range(len(vocabulary)) if row in vocabulary.ancestors(other)]
        assert found[row] == max([scores[row], *scores[below]])
        assert all(found[parent] >= found[row] for parent in vocabulary.ancestors(row))
    assert (raised(found[None], vocabulary)[0] == found).all()


@pytest.mark.long
@given(scored(), st.integers(1, 15), st.sampled_from([None, 0.3, 0.7]), st.data())
def test_sets_are_closed_or_specific(
    given: tuple[Vocabulary, np.ndarray], k: int, threshold: float | None, data: st.DataObject
) -> None:
    vocabulary, scores = given
    found = raised(scores[None], vocabulary)[0]
    exclude = data.draw(st.sets(st.integers(0, len(vocabulary) - 1), max_size=3))
    ranked = best_first(found, vocabulary, len(vocabulary))
    assert sorted(ranked) == list(range(len(vocabulary)))
    options = {"k": k, "threshold": threshold, "exclude": exclude}
    closed = select_tags(ranked, found, vocabulary, hierarchy="closed", **options)
    assert all(vocabulary.ancestors(row) - exclude <= set(closed) for row in closed)
    specific = select_tags(ranked, found, vocabulary, hierarchy="specific", **options)
    assert not any(other in vocabulary.ancestors(row) for row in specific for other in specific)
    for rows in (closed, specific):
        assert len(rows) <= k
        assert not exclude & set(rows)
        assert all(threshold is None or found[row] >= threshold for row in rows)
        assert list(found[rows]) == sorted(found[rows], reverse=True)
    # Without k, all above the threshold except those above another one.
    everything = {"k": None, "threshold": threshold or 0.0, "exclude": exclude}
    whole = select_tags(ranked, found, vocabulary, hierarchy="specific", **everything)
    above = {row for row in ranked if threshold is None or found[row] >= threshold} - exclude
    assert set(whole) == {r for r in above if not any(r in vocabulary.ancestors(o) for o in above)}


def test_an_improbable_concept_does_not_displace_a_broader_one() -> None:
    """The best tag of this paper was the child, at 0.05."""
    broader = {"parent": (), "child": ("parent",), "other": (), "likely": ("other",)}
    vocabulary = Vocabulary(Concept(name, name, broader=above) for name, above in broader.items())
    found = np.array([0.95, 0.05, 0.6, 0.3])

    def names(k: int, threshold: float | None) -> list[str]:
        options = {"k": k, "threshold": threshold, "exclude": (), "hierarchy": "specific"}
        ranked = best_first(found, vocabulary, len(found))
        return [vocabulary[row].id for row in select_tags(ranked, found, vocabulary, **options)]

    assert names(1, None) == ["parent"]
    assert names(5, None) == ["parent", "likely"]
    # A threshold says what is probable enough.
    assert names(5, 0.01) == ["likely", "child"]
    assert names(5, 0.5) == ["parent", "other"]


@pytest.mark.parametrize("hierarchy", ["flat", "closed", "specific"])
@settings(max_examples=30)
@given(scored(), st.sampled_from([None, 1, 3]), st.integers(0, 99), st.data())
def test_a_precision_is_that_of_the_tags_selected(
    hierarchy: Hierarchy,
    given: tuple[Vocabulary, np.ndarray],
    k: int | None,
    seed: int,
    data: st.DataObject,
) -> None:
    """What held-out suggestions say at each threshold is what would be suggested there."""
    vocabulary, scores = given
    size, rng = len(vocabulary), np.random.default_rng(seed)
    scores_BC = rng.permuted(np.broadcast_to(scores, (3, size)), axis=1)
    scores_BC = scores_BC if hierarchy == "flat" else raised(scores_BC, vocabulary)
    right_BC = rng.random((3, size)) < 0.5
    exclude = data.draw(st.sets(st.integers(0, size - 1), max_size=3))
    ranked = [best_first(scores_C, vocabulary, size) for scores_C in scores_BC]
    papers_P, concepts_P = np.repeat(np.arange(3), size), np.concatenate(ranked)
    ranks_P = np.tile(np.arange(size) + 1, 3)
    pairs = scores_BC[papers_P, concepts_P], right_BC[papers_P, concepts_P]
    works_P = np.minimum(papers_P, 1)  # the last two are copies
    held_out = Suggestions(*pairs, papers_P, ranks_P, concepts_P, works_P=works_P)
    options = {"k": k, "exclude": exclude, "hierarchy": hierarchy}
    found = as_selected(held_out, vocabulary, **options)
    assert found.added_P is not None
    assert found.works_P is not None
    assert np.array_equal(found.works_P, np.minimum(found.papers_P, 1))
    for threshold in {-1.0, *scores.tolist()}:
        kept_P = found.probabilities_P >= threshold
        for paper in range(3):
            tags = select_tags(
                ranked[paper], scores_BC[paper], vocabulary, threshold=threshold, **options
            )
            own_P = kept_P & (found.papers_P == paper)
            assert found.added_P[own_P].sum() == len(tags)
            assert found.right_P[own_P].sum() == right_BC[paper, tags].sum()


@given(scored(), st.integers(1, 14))
def test_the_best_are_those_of_a_full_sort(given: tuple[Vocabulary, np.ndarray], most: int) -> None:
    vocabulary, scores = given
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], vocabulary.position_C[row]))
    assert best_first(scores, vocabulary, most)[:most] == order[:most]


def test_a_closed_tagger_suggests_closed_sets_or_the_narrowest_concepts(
    model: SciMult, tmp_path: Path
) -> None:
    folder = tmp_path / "closed"
    tagger = Tagger.train(folder, VOCABULARY, papers(300), model=model, hierarchy="closed")
    for tags in tagger.tag(NEW, k=4, evidence=False):
        rows = {VOCABULARY.row(tag.id) for tag in tags}
        assert rows == VOCABULARY.closed(rows)
        scores = {VOCABULARY.row(tag.id): tag.score for tag in tags}
        for row in rows:
            assert all(scores[above] >= scores[row] for above in VOCABULARY.ancestors(row))
        assert VOCABULARY.row("top") in rows
    lowest = tagger.tag(NEW, k=4, threshold=0.3, hierarchy="specific", evidence=False)
    assert sum(map(len, lowest)) > len(NEW)
    for tags in lowest:
        rows = {VOCABULARY.row(tag.id) for tag in tags}
        assert not any(rows & VOCABULARY.ancestors(row) for row in rows)
    assert not any(tag.id == "top" for tags in lowest for tag in tags)
