"""A whole generated world in memory: fields, papers with texts, citations and queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.preparation.world.fields import (
    FINE,
    FieldTree,
    WordMaker,
    WorldSettings,
    make_tree,
    stream,
)
from scimult.preparation.world.papers import Paper, PaperMaker, make_references
from scimult.preparation.world.sentences import TEMPLATE_WORDS, Writer
from scimult.types import IntArray, Text

_TWO_CONCEPTS = 0.7
_MOST_CLICKS = 3


@dataclass(frozen=True, slots=True)
class Query:
    """A request for papers about all of ``concepts``: one or two concepts of fine fields.

    ``relevant`` are all papers that answer it, ``results`` is the result list in order, and
    ``clicked`` are the opened results. All are rows of the world; the first and last are sorted.
    """

    id: str
    text: str
    concepts: tuple[int, ...]
    relevant: IntArray
    results: IntArray
    clicked: IntArray


@dataclass(frozen=True)
class World:
    """A seeded scholarly world.

    ``papers``, ``paper_texts`` and ``references`` have one entry per paper, oldest first, and
    ``labels`` one per field of the tree. Papers from row ``first_held_out`` on are from the
    held-out years; ``train_queries`` only know earlier papers, ``eval_queries`` know all.
    """

    settings: WorldSettings
    tree: FieldTree
    papers: list[Paper]
    references: list[IntArray]
    first_held_out: int
    paper_texts: list[Text]
    labels: list[Text]
    train_queries: list[Query]
    eval_queries: list[Query]


def make_world(settings: WorldSettings) -> World:
    """Return the world of these settings, the same on every machine."""
    words = WordMaker(stream(settings, "words"), TEMPLATE_WORDS)
    tree = make_tree(settings, words)
    papers = PaperMaker(settings, tree, words).make()
    writer = Writer(settings, tree, words)
    last = settings.last_year - settings.held_out_years
    first_held_out = sum(paper.year <= last for paper in papers)
    # Evaluation queries are drawn first; training queries avoid their concepts.
    taken: set[tuple[int, ...]] = set()
    evaluation = _Searcher(settings, tree, papers, writer, "eval")
    eval_queries = evaluation.queries(settings.eval_queries, taken)
    training = _Searcher(settings, tree, papers[:first_held_out], writer, "train")
    train_queries = training.queries(round(settings.queries_per_paper * first_held_out), taken)
    return World(
        settings=settings,
        tree=tree,
        papers=papers,
        references=make_references(settings, tree, papers),
        first_held_out=first_held_out,
        paper_texts=[writer.paper(paper) for paper in papers],
        labels=[writer.label(field) for field in range(len(tree.fields))],
        train_queries=train_queries,
        eval_queries=eval_queries,
    )


class _Searcher:
    """Draws queries about a collection of papers, maybe the first of a world, and answers them.

    ``part`` is the prefix of the queries' ids and the name of the random stream.
    """

    def __init__(
        self,
        settings: WorldSettings,
        tree: FieldTree,
        papers: Sequence[Paper],
        writer: Writer,
        part: str,
    ) -> None:
        self._papers, self._writer, self._part = papers, writer, part
        self._list_length = settings.shown
        self._rng = stream(settings, f"{part} queries")
        self._fine = tree.concepts_of(FINE)
        self._about: list[set[int]] = [set() for _ in tree.concepts]
        for row, paper in enumerate(papers):
            for concept in paper.concepts:
                self._about[concept].add(row)

    def queries(self, count: int, taken: set[tuple[int, ...]]) -> list[Query]:
        """Return up to ``count`` queries whose concepts are not in ``taken``, and add them to it.

        Fewer are returned only if the papers offer no further combinations.
        """
        queries: list[Query] = []
        for _ in range(10 * count):
            if len(queries) == count:
                break
            paper = self._papers[int(self._rng.integers(len(self._papers)))]
            specific = [concept for concept in paper.concepts if concept in self._fine]
            size = 2 if self._rng.random() < _TWO_CONCEPTS else 1
            concepts = tuple(sorted(self._rng.choice(specific, size, replace=False).tolist()))
            if concepts not in taken:
                taken.add(concepts)
                queries.append(self._query(f"{self._part}-{len(queries):05d}", concepts))
        return queries

    def _query(self, name: str, concepts: tuple[int, ...]) -> Query:
        """Return a query whose result list has 1 to 3 relevant papers, and near misses."""
        rng = self._rng
        relevant = np.array(sorted(set.intersection(*(self._about[c] for c in concepts))))
        clicks = min(len(relevant), int(rng.integers(1, _MOST_CLICKS + 1)))
        clicked = rng.choice(relevant, clicks, replace=False)
        # Near misses are about one of two concepts, or about concepts related to the only one.
        related = set(concepts)
        if len(concepts) == 1:
            related = {c for row in relevant for c in self._papers[row].concepts} & self._fine
        near = sorted(set.union(*(self._about[c] for c in related)) - set(relevant.tolist()))
        missed = rng.choice(near, min(len(near), self._list_length - clicks), replace=False)
        results = rng.permutation(np.concatenate([clicked, missed]).astype(np.int64))
        text = self._writer.query(concepts)
        return Query(name, text, concepts, relevant, results, np.sort(clicked))
