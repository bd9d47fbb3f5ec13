"""A whole generated world in memory: fields, papers with texts, citations and queries."""

from __future__ import annotations

from dataclasses import dataclass

from scimult.preparation.world.citations import CitationMaker
from scimult.preparation.world.fields import FieldTree, TreeBuilder
from scimult.preparation.world.papers import Paper, PaperMaker
from scimult.preparation.world.queries import Query, Searcher
from scimult.preparation.world.sentences import TEMPLATE_WORDS, Writer
from scimult.preparation.world.settings import WorldSettings, stream
from scimult.preparation.world.words import WordMaker
from scimult.types import IntArray, Text


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
    tree = TreeBuilder(settings, words).build()
    papers = PaperMaker(settings, tree, words).make()
    writer = Writer(settings, tree, words)
    first_held_out = sum(
        paper.year <= settings.last_year - settings.held_out_years for paper in papers
    )
    # Evaluation queries are drawn first; training queries avoid their concepts.
    taken: set[tuple[int, ...]] = set()
    evaluation = Searcher(settings, tree, papers, writer, "eval")
    eval_queries = evaluation.queries(settings.eval_queries, taken)
    training = Searcher(settings, tree, papers[:first_held_out], writer, "train")
    train_queries = training.queries(round(settings.queries_per_paper * first_held_out), taken)
    return World(
        settings=settings,
        tree=tree,
        papers=papers,
        references=CitationMaker(settings, tree, papers).make(),
        first_held_out=first_held_out,
        paper_texts=[writer.paper(paper) for paper in papers],
        labels=[writer.label(field) for field in range(len(tree.fields))],
        train_queries=train_queries,
        eval_queries=eval_queries,
    )
