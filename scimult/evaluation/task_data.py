"""Benchmark data in memory: texts with ids, and their judgments, labels or persons.

Shape legend: Q queries, C candidates, N papers, P judged (query, reviewer) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.data.ragged import Ragged
from scimult.retrieval.runs import Qrels
from scimult.types import IntArray, Role, Similarity, Text

Inputs = list[tuple[Sequence[Text], str, Role]]
"""Texts of a data set to encode, with their task and role."""
HARD, SOFT = 1, 2
"""Bits of a reviewer's grade: relevant to all judges, relevant to most."""


@dataclass(frozen=True)
class Reviewers:
    """Authors to rank by their papers, given as candidate rows.

    Grades in ``qrels`` are the sum of ``HARD`` and ``SOFT`` where each applies.
    """

    ids: list[str]
    papers: Ragged
    qrels: Qrels


@dataclass(frozen=True)
class _Set:
    """Fields common to all kinds of benchmark data.

    ``files`` are all that were read, ``remarks`` caveats for readers of the scores, with the number
    of occurrences.
    """

    name: str
    task: str
    files: list[Path] = field(default_factory=list, kw_only=True)
    remarks: dict[str, int] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Dataset(_Set):
    """Queries, candidates and judgments of one benchmark.

    Attributes
    ----------
    query_ids, queries : list
        Ids and texts of the Q queries (papers to label are queries too).
    candidate_ids, candidates : list
        Ids and texts of the C candidates (documents, papers or labels).
    qrels : Qrels
        Judgments of every query over these candidates.
    lists : Ragged, optional
        Candidate rows that each query ranks; None: all.
    label_names : list of list of str
        All names of each label; empty unless candidates are labels.
    similarity : {"dot", "cosine", "l2"}, optional
        Prescribed by the benchmark; None: the encoder's own.
    groups : list of str
        Group of each query (a field of study), scored separately too; may be empty.
    weights_Q : array, optional
        Weight of each query, where they do not count the same.
    matched : Ragged, optional
        Label rows whose name matches each paper, where the data lists them.
    reviewers : Reviewers, optional
        The candidates' authors, where these are ranked.
    """

    query_ids: list[str]
    queries: list[Text]
    candidate_ids: list[str]
    candidates: list[Text]
    qrels: Qrels
    lists: Ragged | None = None
    label_names: list[list[str]] = field(default_factory=list)
    similarity: Similarity | None = None
    groups: list[str] = field(default_factory=list)
    weights_Q: NDArray[np.float64] | None = None
    matched: Ragged | None = None
    reviewers: Reviewers | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of queries, candidates and relevant pairs."""
        judged = self.qrels if self.reviewers is None else self.reviewers.qrels
        return {
            "queries": len(self.query_ids),
            "candidates": len(self.candidate_ids),
            "relevant": int(judged.relevant_Q.sum()),
        }

    @property
    def inputs(self) -> Inputs:
        """Queries and candidates."""
        return [(self.queries, self.task, "query"), (self.candidates, self.task, "candidate")]

    @property
    def own_rows(self) -> IntArray:
        """For each query, the row of the candidate with the same id; -1 if none."""
        rows = {name: row for row, name in enumerate(self.candidate_ids)}
        return np.array([rows.get(name, -1) for name in self.query_ids], dtype=np.int64)


@dataclass(frozen=True)
class PaperSet(_Set):
    """Papers with ``labels`` or numbers (``values_N``), for a linear model on their embeddings.

    It is fitted on ``train_rows`` and scored on ``test_rows``.
    """

    ids: list[str]
    texts: list[Text]
    train_rows: IntArray
    test_rows: IntArray
    labels: list[list[str]]
    values_N: NDArray[np.float64]

    @property
    def inputs(self) -> Inputs:
        """Papers, as queries."""
        return [(self.texts, self.task, "query")]

    @property
    def query_ids(self) -> list[str]:
        """Ids of the scored papers."""
        return [self.ids[row] for row in self.test_rows]

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of scored papers, of classes, of their gold labels, and of training papers."""
        return {
            "queries": len(self.test_rows),
            "candidates": len({label for labels in self.labels for label in labels}),
            "relevant": sum(len(self.labels[row]) for row in self.test_rows) if self.labels else 0,
            "train": len(self.train_rows),
        }


@dataclass(frozen=True)
class Signatures(_Set):
    """Author mentions (one author of one paper) in blocks of similar names, with true persons.

    ``ids``, ``paper_rows``, ``blocks`` and ``persons`` have an entry per signature, ``paper_ids``
    and ``texts`` one per paper.
    """

    ids: list[str]
    paper_ids: list[str]
    texts: list[Text]
    paper_rows: IntArray
    blocks: list[str]
    persons: list[str]

    @property
    def inputs(self) -> Inputs:
        """Papers, as queries."""
        return [(self.texts, self.task, "query")]

    @property
    def query_ids(self) -> list[str]:
        """Ids of the signatures."""
        return self.ids

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of signatures, of papers and of persons."""
        return {
            "queries": len(self.ids),
            "candidates": len(self.texts),
            "relevant": len(set(zip(self.blocks, self.persons, strict=True))),
        }


TaskData = Dataset | PaperSet | Signatures
