"""Code shared by readers: which queries can be scored, and arrays from judgments by id.

Bad records are errors, or with ``--skip-bad`` are counted and named; either way no query, document
or judgment disappears silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.ragged import Ragged
from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.retrieval.runs import Qrels
from scimult.types import Text

NOTHING_RELEVANT = (
    "nothing is relevant to the query (trec_eval counts it as 0; leaving it out raises the mean)"
)
COUNTS_AS_0 = "nothing is relevant to the query, which counts as 0"
ALSO_FITTED = "a scored paper is also a training paper, which flatters the scores"
NO_TEXT = "a paper without a title and abstract stands as a full stop"
BLANK = Text("paper", ".")
NOT_ASKED = "query has no judgment and is not asked"

Targets = dict[str, tuple[list[str], float]]
"""Paper id to its labels and its number, only one of which is used."""


@dataclass(frozen=True)
class Source:
    """A benchmark whose files are being read.

    ``paths`` are the files that its layout requires, in the order of ``needed``; ``rejects``
    receives bad records and queries that cannot be scored.
    """

    name: str
    benchmark: Benchmark
    folder: Path
    paths: list[Path]
    rejects: Rejects

    def reject(self, problem: str, value: Any, fix: str, path: Path | None = None) -> None:
        """Reject an entry of a file (default: the first) with a message."""
        self.rejects.reject(DataError(problem, path=path or self.paths[0], value=value, fix=fix))

    def keep(
        self,
        queries: Iterable[str],
        problem_of: Callable[[str], str | None],
        fix: str,
        path: Path | None = None,
    ) -> list[str]:
        """Return the queries without a problem, at least one; reject the others.

        Raises
        ------
        DataError
            If no query is left.
        """
        sound = []
        for query in queries:
            problem = problem_of(query)
            if problem is None:
                sound.append(query)
            else:
                self.reject(problem, query, fix, path)
        if not sound:
            fix, path = "check that the ids match", path or self.paths[0]
            raise DataError("no query can be scored", path=path, fix=fix)
        return sound

    def known_documents(
        self, judgments: Judgments, documents: Mapping[str, Text], path: Path | None = None
    ) -> Judgments:
        """Return the judgments whose document exists; reject the others."""
        known: Judgments = {}
        for query, judged in judgments.items():
            for document in judged:
                if document not in documents:
                    fix = "add its text, or remove the judgment"
                    self.reject("judged paper has no text", (query, document), fix, path)
            known[query] = {
                document: grade for document, grade in judged.items() if document in documents
            }
        return known

    def known_queries(
        self, judgments: Judgments, text_of: Callable[[str], Text | None]
    ) -> dict[str, Text]:
        """Return the texts of judged queries; reject queries without one, or with a blank one."""
        queries: dict[str, Text] = {}
        for query in judgments:
            text = text_of(query)
            if text is None or not text.joined:
                fix = "add its text, or remove the query"
                self.reject("judged query has no text", query, fix)
            else:
                queries[query] = text
        return queries

    def ranked_set(
        self,
        queries: Mapping[str, Text],
        documents: Mapping[str, Text],
        judgments: Judgments,
        *,
        judged_in: Path | None = None,
        listed: Judgments | None = None,
        listed_in: Path | None = None,
        groups: Mapping[str, str] | None = None,
        remarks: Mapping[str, int] | None = None,
    ) -> Dataset:
        """Build a data set of ranked candidates; keep the queries that can be scored.

        ``listed`` are the candidates of each query (None: all documents). ``judged_in`` and
        ``listed_in`` are the files of judgments and candidates, for messages; by default the first.
        A blank document stands as a full stop and is counted.
        ``remarks`` are caveats for readers, with the number of occurrences, which may be 0.

        Raises
        ------
        DataError
            If no query is left, or none has anything relevant.
        """
        judged_in = judged_in or self.paths[0]
        ids = self._scorable(queries, judgments, judged_in)
        if listed is not None:
            ids = self._with_listed_relevant(ids, judgments, listed, listed_in or judged_in)
        without = sum(not _has_relevant(judgments[query]) for query in ids)
        blank = [document for document, text in documents.items() if not text.joined]
        documents = {**documents, **dict.fromkeys(blank, BLANK)}
        counted = {**(remarks or {}), NO_TEXT: len(blank), COUNTS_AS_0: without}
        if without == len(ids):
            fix = "check the judgments"
            raise DataError("no query has anything relevant", path=judged_in, fix=fix)
        rows = {document: row for row, document in enumerate(documents)}
        return Dataset(
            name=self.name,
            task=self.benchmark.task,
            query_ids=ids,
            queries=[queries[query] for query in ids],
            candidate_ids=list(documents),
            candidates=list(documents.values()),
            qrels=qrels_of([judgments[query] for query in ids], rows),
            lists=None if listed is None else lists_of([listed[query] for query in ids], rows),
            files=self.paths,
            similarity=self.benchmark.similarity,
            groups=[groups[query] for query in ids] if groups else [],
            remarks={caveat: count for caveat, count in counted.items() if count},
        )

    def labelled_set(
        self,
        papers: Mapping[str, tuple[Text, Sequence[str]]],
        labels: Mapping[str, tuple[Text, list[str]]],
        files: Sequence[Path],
    ) -> Dataset:
        """Build a data set of labelled papers; keep the papers that can be scored.

        ``papers`` have a text and the ids of their labels, ``labels`` a text and all their names.

        Raises
        ------
        DataError
            If no paper is left.
        """
        judgments: Judgments = {}
        for identity, (_, given) in papers.items():
            for label in given:
                if label not in labels:
                    problem = "paper has a label that is not in the label file"
                    self.reject(problem, (identity, label), f"add it to {self.paths[1]}")
            judgments[identity] = dict.fromkeys((label for label in given if label in labels), 1)
        ids = self._scorable(papers, judgments, self.paths[0])
        if self.benchmark.protocol == "classification_coarse":
            ids = self._single_label(ids, judgments)
        texts = [text for text, _ in labels.values()]
        if self.benchmark.label_text == "name":
            texts = [Text("label", text.title) for text in texts]
        rows = {label: row for row, label in enumerate(labels)}
        return Dataset(
            name=self.name,
            task=self.benchmark.task,
            query_ids=ids,
            queries=[papers[identity][0] for identity in ids],
            candidate_ids=list(labels),
            candidates=texts,
            qrels=qrels_of([judgments[identity] for identity in ids], rows),
            label_names=[names for _, names in labels.values()],
            files=list(files),
            similarity=self.benchmark.similarity,
        )

    def paper_set(self, papers: Mapping[str, Text], train: Targets, test: Targets) -> PaperSet:
        """Build a data set for a linear model, training papers first; neither part is empty.

        Papers that are in both are counted, but fitted and scored like others, as their authors do.

        Raises
        ------
        DataError
            If the training or the test set is empty.
        """
        for kind, side in (("training", train), ("test", test)):
            if not side:
                problem = f"{self.name} has no {kind} paper"
                raise DataError(problem, path=self.paths[0], fix="check the split")
        ids = [*train, *test]
        targets = [*train.values(), *test.values()]
        fitted = len(train.keys() & test.keys())
        is_regression = self.benchmark.protocol == "regression_linear"
        return PaperSet(
            name=self.name,
            task=self.benchmark.task,
            ids=ids,
            texts=[papers[paper] for paper in ids],
            train_rows=np.arange(len(train)),
            test_rows=np.arange(len(train), len(ids)),
            labels=[] if is_regression else [labels for labels, _ in targets],
            values_N=np.array([value for _, value in targets] if is_regression else []),
            files=self.paths,
            remarks={ALSO_FITTED: fitted} if fitted else {},
        )

    def _scorable(self, queries: Iterable[str], judgments: Judgments, path: Path) -> list[str]:
        """Return the queries with a judgment.

        They also need a relevant candidate, unless the benchmark counts those without as 0.
        """

        def problem_of(query: str) -> str | None:
            if not judgments[query]:
                return "query has no judgment"
            counts_as_0 = self.benchmark.nothing_relevant == "zero"
            return None if counts_as_0 or _has_relevant(judgments[query]) else NOTHING_RELEVANT

        fix = "judge or remove it, or set nothing_relevant: zero, as for BEIR: queries without "
        fix += "judgments are left out, others without anything relevant count as 0"
        return self.keep(queries, problem_of, fix, path)

    def _single_label(self, papers: Sequence[str], judgments: Judgments) -> list[str]:
        def problem_of(paper: str) -> str | None:
            problem = "paper has several labels, but coarse classification takes one"
            return problem if len(judgments[paper]) > 1 else None

        fix = "keep one label, or use the protocol classification_fine"
        return self.keep(papers, problem_of, fix)

    def _with_listed_relevant(
        self, queries: Sequence[str], judgments: Judgments, listed: Judgments, path: Path
    ) -> list[str]:
        """Return the queries whose candidate lists include everything relevant."""

        def problem_of(query: str) -> str | None:
            if not listed[query]:
                return "query has no candidates"
            relevant = {document for document, score in judgments[query].items() if score > 0}
            return None if relevant <= listed[query].keys() else "a relevant one is not listed"

        return self.keep(queries, problem_of, "list it as a candidate of the query", path)


def _has_relevant(judged: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in judged.values())


def qrels_of(judgments: Sequence[Mapping[str, int]], rows: Mapping[str, int]) -> Qrels:
    """Convert judgments by id to arrays over candidate rows."""
    grades = Ragged.from_lists(judged.values() for judged in judgments)
    return Qrels(lists_of(judgments, rows), grades, candidates=len(rows))


def lists_of(listed: Sequence[Iterable[str]], rows: Mapping[str, int]) -> Ragged:
    """Convert lists of candidate ids to lists of rows."""
    return Ragged.from_lists([rows[document] for document in documents] for documents in listed)


def hold_out(targets: Targets, share: float) -> tuple[Targets, Targets]:
    """Split papers by the SHA-256 of their ids; return the kept ones and the held-out share."""
    order = sorted(targets, key=lambda paper: hashlib.sha256(paper.encode()).digest())
    held = set(order[: max(1, round(share * len(order)))])
    others = {paper: target for paper, target in targets.items() if paper not in held}
    return others, {paper: target for paper, target in targets.items() if paper in held}
