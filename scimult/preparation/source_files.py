"""Reads the files of one source into the corpus; every function returns what it counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scimult.data.lines import Record, read_jsonl
from scimult.data.tables import read_table
from scimult.errors import DataError
from scimult.preparation.corpus import Corpus, FileTexts, IntPairs, parse_text
from scimult.preparation.targets import PAPER_COLUMN, TargetReader
from scimult.types import IntArray, Text

NOTHING_LEFT = "check that it is the right file; without --skip-bad you see what is wrong with it"
_TEACHER = "teacher"
_NEGATIVE = "negative-id"


class Paper(NamedTuple):
    """One line of a papers file."""

    record: Record
    identifier: str
    text: Text
    authors: list[str]
    venue: str
    year: int | None
    labels: list[str]
    doi: str


@dataclass
class Answers:
    """Which papers answer which query, and which were only shown; rows of the text store.

    A teacher may have scored any of them: ``scored`` pairs with their ``scores``. ``own`` pairs
    the number of an answer with a paper that was given as the hard negative of that answer.
    """

    positives: IntPairs = field(default_factory=IntPairs)
    shown: IntPairs = field(default_factory=IntPairs)
    own: IntPairs = field(default_factory=IntPairs)
    scored: IntPairs = field(default_factory=IntPairs)
    scores: list[float] = field(default_factory=list)

    def triples(self) -> IntArray:
        """Return query, answer and the answer's own hard negative, shape ``(T, 3)``."""
        answers, negatives = self.own.columns()
        queries, positives = self.positives.columns()
        return np.stack([queries[answers], positives[answers], negatives], axis=1)


def read_labels(path: Path, namespace: str, corpus: Corpus) -> Counter[str]:
    """Add the labels of a label space to the corpus.

    Raises
    ------
    DataError
        As every reader: at the first bad record, unless bad records are skipped.
    """
    counts: Counter[str] = Counter()
    texts = FileTexts(corpus.texts)

    def add(record: Record) -> Text:
        text = parse_text(record, "label")
        texts.add(f"{namespace}/label:{record.identifier('id')}", text, record)
        return text

    for text in corpus.rejects.keep(read_jsonl(path, corpus.rejects), add):
        counts["labels"] += 1
        counts["labels without definition"] += not text.body.strip()
    counts["labels known from an earlier source"] = texts.merged
    start = corpus.label_rows.get(namespace, texts.rows).start
    corpus.label_rows[namespace] = range(start, texts.rows.stop)
    return counts


def read_papers(
    path: Path, namespace: str, corpus: Corpus, targets: Sequence[TargetReader] = ()
) -> Counter[str]:
    """Add papers with their metadata, and with their labels where the namespace defines labels.

    ``targets`` are those that stand in fields of the papers.
    """
    counts: Counter[str] = Counter()
    texts = FileTexts(corpus.texts)
    has_labels = namespace in corpus.label_rows

    def add(record: Record) -> Paper:
        paper = _parse_paper(record)
        row = texts.add(f"{namespace}:{paper.identifier}", paper.text, record)
        authors = [name for name in paper.authors if name]
        corpus.add_paper(row, authors, paper.venue, paper.year, paper.doi)
        if has_labels:
            corpus.add_labels(row, paper.labels, namespace, record)
        for reader in targets:
            reader.add_field(row, record)
        return paper

    for paper in corpus.rejects.keep(read_jsonl(path, corpus.rejects), add):
        counts["papers"] += 1
        counts["papers with empty title"] += not paper.text.title.strip()
        counts["papers with empty abstract"] += not paper.text.body.strip()
        counts["papers without labels"] += has_labels and not paper.labels
        counts["empty author names"] += paper.authors.count("")
    if not counts["papers"]:
        problem = f"no paper is left{corpus.rejects.because()}"
        raise DataError(problem, path=path, fix=NOTHING_LEFT)
    counts["papers known from an earlier source"] = texts.merged
    return counts


def read_citations(
    path: Path, namespace: str, corpus: Corpus, *, drop_dangling: bool = False
) -> tuple[IntPairs, int]:
    """Return edges ``(citing, cited)`` between papers of the namespace, and how many others.

    An edge to or from a paper that the namespace has not is a bad record, unless such ones are
    dropped and counted.
    """
    edges = IntPairs()
    dropped = 0

    def add(record: Record) -> None:
        nonlocal dropped
        named = (record.identifier(column) for column in ("citing", "cited"))
        if drop_dangling and any(corpus.texts.row(f"{namespace}:{one}") is None for one in named):
            dropped += 1
            return
        citing = corpus.paper_row(record, "citing", namespace)
        cited = corpus.paper_row(record, "cited", namespace)
        if citing == cited:
            raise record.error(
                "paper cites itself", value=record.fields["citing"], fix="remove this line"
            )
        edges.append(citing, cited)

    rows = read_table(path, ("citing", "cited"), corpus.rejects)
    for _ in corpus.rejects.keep(rows, add):
        pass
    return edges, dropped


def read_queries(path: Path, source: str, corpus: Corpus) -> tuple[FileTexts, Counter[str]]:
    """Add the queries of a source; the result knows their rows and lines."""
    texts = FileTexts(corpus.texts)

    def add(record: Record) -> int:
        text = parse_text(record, "query")
        return texts.add(f"{source}/query:{record.identifier('id')}", text, record)

    count = sum(1 for _ in corpus.rejects.keep(read_jsonl(path, corpus.rejects), add))
    return texts, Counter({"queries": count})


def read_answers(
    path: Path,
    kind: str,
    source: str,
    namespace: str,
    corpus: Corpus,
    score_threshold: float,
) -> tuple[Answers, Counter[str]]:
    """Return the papers that answer each query, and those that were shown and do not.

    For ``links`` the query is a paper itself.

    Parameters
    ----------
    path : path
        Table with query-id and paper-id (or corpus-id); teacher and negative-id where there are.
    kind : str
        ``positives`` (all are), ``judgments`` and ``links`` (column score, positive from the
        threshold on) or ``clicks`` (column clicked, 0 or 1).
    source, namespace : str
        Where the queries and the papers belong.
    corpus : Corpus
        What has been read so far.
    score_threshold : float
        Smallest score of a positive.
    """
    answers = Answers()

    def add(record: Record) -> None:
        paper = corpus.paper_row(record, "paper-id", namespace)
        if kind == "links":
            query = corpus.paper_row(record, "query-id", namespace)
        else:
            query = _query_row(record, source, corpus)
        if query == paper:
            value = record.fields["query-id"]
            raise record.error("paper is linked to itself", value=value, fix="remove this line")
        positive = _is_positive(record, kind, score_threshold)
        score = _teacher_score(record)
        if record.text(_NEGATIVE, "").strip():
            negative = _own_negative(record, (query, paper), positive, namespace, corpus)
            answers.own.append(len(answers.positives), negative)
        (answers.positives if positive else answers.shown).append(query, paper)
        if score is not None:
            answers.scored.append(query, paper)
            answers.scores.append(score)

    extra = {"positives": (), "clicks": ("clicked",)}.get(kind, ("score",))
    rows = read_table(path, ("query-id", PAPER_COLUMN, *extra), corpus.rejects)
    for _ in corpus.rejects.keep(rows, add):
        pass
    counts = {
        "answers": len(answers.positives),
        "shown, not answers": len(answers.shown),
        "hard negatives of one answer": len(answers.own),
        "scored by a teacher": len(answers.scored),
    }
    return answers, Counter(counts)


def reject_unanswered(path: Path, queries: FileTexts, answers: Answers, corpus: Corpus) -> None:
    """Reject every query of the file ``path`` that has no positive."""
    answered = answers.positives.columns()[0]
    for row in np.setdiff1d(np.array(queries.rows, dtype=np.int64), answered).tolist():
        identifier, line = queries.origin(row)
        fix = "give it a positive, remove it, or pass --skip-bad"
        corpus.rejects.reject(
            DataError("query without a positive", path=path, line=line, value=identifier, fix=fix)
        )


def _parse_paper(record: Record) -> Paper:
    has_year = record.fields.get("year") is not None
    return Paper(
        record,
        record.identifier("id"),
        parse_text(record, "paper"),
        [name.strip() for name in record.strings("authors", ())],
        record.text("venue", "").strip(),
        record.integer("year") if has_year else None,
        record.identifiers("labels"),
        record.text("doi", "").strip(),
    )


def _query_row(record: Record, source: str, corpus: Corpus) -> int:
    identifier = record.identifier("query-id")
    row = corpus.texts.row(f"{source}/query:{identifier}")
    if row is None:
        raise record.error(
            "column 'query-id' names an unknown query",
            value=identifier,
            fix="add the query, remove this line, or pass --skip-bad",
        )
    return row


def _own_negative(
    record: Record, pair: tuple[int, int], positive: bool, namespace: str, corpus: Corpus
) -> int:
    """Return the row of the hard negative that a pair brings.

    Raises
    ------
    DataError
        If the pair is no positive, or the negative is unknown or one of the two.
    """
    value = record.fields[_NEGATIVE]
    if not positive:
        fix = f"give {_NEGATIVE} beside a positive, or leave it empty"
        problem = f"column {_NEGATIVE!r} beside a pair below the threshold"
        raise record.error(problem, value=value, fix=fix)
    negative = corpus.paper_row(record, _NEGATIVE, namespace)
    if negative in pair:
        fix = "name another paper or leave it empty"
        raise record.error("hard negative is the query or the answer", value=value, fix=fix)
    return negative


def _teacher_score(record: Record) -> float | None:
    """Return the score in the column ``teacher``; ``None`` for an empty one or no such column."""
    return record.number(_TEACHER) if record.text(_TEACHER, "").strip() else None


def _is_positive(record: Record, kind: str, score_threshold: float) -> bool:
    if kind == "positives":
        return True
    if kind in ("judgments", "links"):
        return record.number("score") >= score_threshold
    clicked = record.text("clicked").strip()
    if clicked not in ("0", "1"):
        raise record.error("field 'clicked' is not 0 or 1", value=clicked, fix="write 0 or 1")
    return clicked == "1"
