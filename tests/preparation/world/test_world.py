"""The generated world: reproducible from its seed, with the structure that the tasks need."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.config import validate
from scimult.errors import ConfigError
from scimult.preparation.world import World, WorldSettings, make_world
from scimult.preparation.world.fields import COARSE, FINE, WordMaker
from scimult.preparation.world.sentences import TEMPLATE_WORDS
from scimult.types import Text


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(WorldSettings(papers=1500))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _said(world: World, text: Text, concept: int) -> set[str]:
    """Return the forms of a concept that a text uses."""
    whole = f" {text.title} {text.body} ".lower()
    forms = world.tree.concepts[concept].forms
    return {form for form in forms if re.search(rf"\b{form}\b", whole)}


def _edges(world: World) -> Iterator[tuple[int, int]]:
    return (
        (citing, int(cited)) for citing, list_ in enumerate(world.references) for cited in list_
    )


@pytest.mark.long
def test_same_seed_same_world_and_another_seed_another() -> None:
    first, again, other = (make_world(WorldSettings(papers=300, seed=s)) for s in (7, 7, 8))
    assert first.paper_texts == again.paper_texts
    assert first.labels == again.labels
    assert [q.text for q in first.train_queries] == [q.text for q in again.train_queries]
    assert list(_edges(first)) == list(_edges(again))
    assert not {t.title for t in first.paper_texts} & {t.title for t in other.paper_texts}


def test_every_concept_has_several_forms_of_its_own(world: World) -> None:
    forms = [form for concept in world.tree.concepts for form in concept.forms]
    assert len(set(forms)) == len(forms)
    for concept in world.tree.concepts:
        assert 2 <= len(concept.forms) <= 4
        assert not _words(concept.forms[0]) & _words(concept.forms[1])
        assert sum(concept.usage) == pytest.approx(1)


@pytest.mark.long
def test_citing_and_cited_paper_often_use_different_forms(world: World) -> None:
    """Measured: of 24,890 citations' shared concepts, 53 % are written in no common form."""
    different = [
        not _said(world, world.paper_texts[citing], concept)
        & _said(world, world.paper_texts[cited], concept)
        for citing, cited in _edges(world)
        for concept in set(world.papers[citing].concepts) & set(world.papers[cited].concepts)
    ]
    assert len(different) > 10_000
    assert 0.4 < np.mean(different) < 0.6


def test_a_paper_names_all_its_concepts_and_no_text_is_empty(world: World) -> None:
    for paper, text in zip(world.papers, world.paper_texts, strict=True):
        assert text.kind == "paper"
        assert text.title
        assert text.body.endswith(".")
        assert all(_said(world, text, concept) for concept in paper.concepts)
        assert "{" not in text.title + text.body


def test_a_definition_names_concepts_of_the_field_and_its_place_in_the_tree(world: World) -> None:
    for field, text in zip(world.tree.fields, world.labels, strict=True):
        assert text.title.lower() == field.name
        assert sum(bool(_said(world, text, concept)) for concept in field.concepts) >= 2
        assert field.parent is None or world.tree.fields[field.parent].name in text.body


def test_tree_has_three_levels(world: World) -> None:
    sizes = [len(world.tree.level(level)) for level in (COARSE, 1, FINE)]
    assert sizes == [6, 24, 96]
    for field in world.tree.level(FINE):
        levels = [world.tree.fields[node].level for node in world.tree.lineage(field)]
        assert levels == [2, 1, 0]


def test_papers_look_like_papers(world: World) -> None:
    papers = world.papers
    years = [paper.year for paper in papers]
    assert years == sorted(years)
    assert {years[0], years[-1]} <= {2000, 2001, 2019}
    labels = [len(paper.fields) for paper in papers]
    assert set(labels) == {1, 2, 3}
    assert 1.3 < np.mean(labels) < 1.8
    assert {len(paper.authors) for paper in papers} == {1, 2, 3, 4}
    assert all(len(set(paper.authors)) == len(paper.authors) for paper in papers)
    assert all(len(set(paper.concepts)) == len(paper.concepts) for paper in papers)
    lengths = [len(_words_in_order(text)) for text in world.paper_texts]
    assert 30 < np.mean(lengths) < 60


def _words_in_order(text: Text) -> list[str]:
    return f"{text.title} {text.body}".split()


def test_a_venue_belongs_to_a_branch_and_an_author_to_a_community(world: World) -> None:
    branches: dict[str, set[int]] = {}
    fields: dict[str, list[set[int]]] = {}
    for paper in world.papers:
        branches.setdefault(paper.venue, set()).add(world.tree.lineage(paper.fields[0])[1])
        for author in paper.authors:
            fields.setdefault(author, []).append(set(paper.fields))
    assert all(len(found) == 1 for found in branches.values())
    assert all(set.intersection(*found) for found in fields.values())


def test_citations_go_back_in_time_and_share_a_topic(world: World) -> None:
    assert len(world.references) == len(world.papers)
    for citing, cited in _edges(world):
        assert cited < citing
        assert world.papers[cited].year <= world.papers[citing].year
        assert set(world.papers[cited].concepts) & set(world.papers[citing].concepts)
    for list_ in world.references:
        assert list_.tolist() == sorted(set(list_.tolist()))
    later = world.references[len(world.papers) // 2 :]
    assert 7 < np.mean([len(list_) for list_ in later]) < 9


def test_citations_follow_recency(world: World) -> None:
    """A reference of the later papers is 5.4 years old, a random earlier paper 6.2 (measured)."""
    years = np.array([paper.year for paper in world.papers])
    later = range(500, len(years))
    ages = [years[row] - years[cited] for row in later for cited in world.references[row]]
    random_ages = [np.mean(years[row] - years[:row]) for row in later]
    assert np.mean(ages) < np.mean(random_ages) - 0.5


def test_cited_papers_are_cited_again(world: World) -> None:
    """The most cited tenth gets 35.8 % of the citations; random earlier papers would give 32.0 %,
    because old papers can be cited for longer (measured)."""
    counts = np.bincount([cited for _, cited in _edges(world)], minlength=len(world.papers))
    counts = np.sort(counts)[::-1]
    assert counts[: len(counts) // 10].sum() / counts.sum() > 0.34


def test_most_citations_have_a_hard_negative(world: World) -> None:
    """Section 3.4: a paper that the cited paper cites and the citing one does not."""
    lists = [set(list_.tolist()) for list_ in world.references]
    found = [bool(lists[cited] - lists[citing]) for citing, cited in _edges(world)]
    assert np.mean(found) > 0.85


def test_a_result_list_holds_what_was_clicked_and_near_misses(world: World) -> None:
    about = [set(paper.concepts) for paper in world.papers]
    for query in (*world.train_queries, *world.eval_queries):
        wanted = set(query.concepts)
        relevant = set(query.relevant.tolist())
        clicked = set(query.clicked.tolist())
        shown = query.results.tolist()
        assert 1 <= len(clicked) <= 3
        assert clicked <= relevant
        assert clicked <= set(shown)
        assert len(set(shown)) == len(shown) <= world.settings.shown
        assert all(not wanted <= about[row] for row in set(shown) - clicked)


def test_relevant_papers_are_exactly_those_about_the_whole_query(world: World) -> None:
    about = [set(paper.concepts) for paper in world.papers]
    collections = ((world.train_queries, world.first_held_out), (world.eval_queries, len(about)))
    for queries, size in collections:
        for query in queries:
            wanted = set(query.concepts)
            whole = [row for row in range(size) if wanted <= about[row]]
            assert query.relevant.tolist() == whole


def test_a_query_names_its_concepts(world: World) -> None:
    for query in world.train_queries:
        assert all(_said(world, Text("query", query.text), c) for c in query.concepts)


def test_words_are_new_and_never_the_templates(world: World) -> None:
    maker = WordMaker(np.random.default_rng(0), TEMPLATE_WORDS)
    drawn = [maker.new(kind) for kind in ("noun", "discipline", "name") for _ in range(500)]
    assert len(set(drawn)) == len(drawn)
    assert not TEMPLATE_WORDS & set(drawn)
    blends = [maker.blend("kentic", "torvation") for _ in range(20)]
    assert blends[0] == "kentor"
    assert len(set(blends)) == 20


@pytest.mark.long
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), papers=st.integers(300, 500), years=st.integers(1, 3))
def test_any_seed_makes_a_world(seed: int, papers: int, years: int) -> None:
    chosen = WorldSettings(seed=seed, papers=papers, held_out_years=years, coarse_fields=2)
    made = make_world(chosen)
    assert len(made.papers) == len(made.paper_texts) == papers
    assert 0 < made.first_held_out < papers
    assert made.papers[made.first_held_out].year > chosen.last_year - years


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"papers": 10}, "papers"),
        ({"seed": -1}, "seed"),
        ({"forms": (1, 3)}, "forms must be"),
        ({"forms": (3, 5)}, "forms must be"),
        ({"concepts": (3, 1, 3)}, "at least 2 concepts"),
        ({"held_out_years": 10}, "twice held_out_years"),
        ({"paper": 500}, "did you mean 'papers'"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(WorldSettings, change)
