"""Read the pair tables of a source (citations, links, answers) and its target tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scimult.data.records import Record
from scimult.data.sql import literal, quoted
from scimult.data.teacher import TWO_SCORES, TeacherScores, conflict_of
from scimult.errors import DataError
from scimult.preparation.config import SourceConfig
from scimult.preparation.corpus import Corpus, FileTexts
from scimult.preparation.pair_columns import Columns
from scimult.preparation.pair_rows import answer_rows, edge_rows, table_rows
from scimult.preparation.targets import PAPER_COLUMN, TargetReader
from scimult.types import IntArray


@dataclass(frozen=True)
class Answers:
    """Papers that answer each query or were only shown for it, as rows of the text store.

    ``scored`` are the pairs that a teacher scored, with their ``scores`` and ``lines`` of the file.
    ``triples`` are queries, answers and the hard negative given for that answer.
    """

    path: Path
    positives: Columns
    shown: Columns
    triples: IntArray
    scored: Columns
    scores: NDArray[np.float64]
    lines: IntArray


class _Problem(NamedTuple):
    """A possible defect of a row: condition and offending value in SQL, message and fix."""

    condition: str
    value: str
    message: str
    fix: str


def read_citations(
    path: Path, namespace: str, corpus: Corpus, *, drop_dangling: bool
) -> tuple[Columns, int]:
    """Return edges ``(citing, cited)`` within the namespace, and the number of dropped edges.

    An edge to or from an unknown paper is a bad record, unless ``drop_dangling``.
    """
    known = f"known WHERE space = {literal(f'{namespace}:')}"
    unknown = "column '{}' names an unknown paper".format
    fix = _unknown_paper(namespace)
    problems = {
        "citing": _Problem("a.row IS NULL", "s.citing", unknown("citing"), fix),
        "cited": _Problem("b.row IS NULL", "s.cited", unknown("cited"), fix),
        "self": _Problem("a.row = b.row", "s.citing", "paper cites itself", "remove this line"),
    }
    corpus.read(
        "edges",
        f"SELECT line, a.row AS citing, b.row AS cited, {_problem_columns(problems)} "
        "FROM ({rows}) AS s "
        f"LEFT JOIN (FROM {known}) AS a ON a.id = s.citing "
        f"LEFT JOIN (FROM {known}) AS b ON b.id = s.cited",
        edge_rows(path),
    )
    _warn_of_forms(corpus, "edges", path, f"{namespace}:")
    dropped = 0
    if drop_dangling:
        row = corpus.one("SELECT count(*) AS n FROM edges WHERE problem IN ('citing', 'cited')")
        dropped = int(row["n"])
        problems = {"self": problems["self"]}
    _reject(corpus, "edges", path, problems)
    return corpus.columns("SELECT citing, cited FROM edges WHERE problem IS NULL"), dropped


def read_answers(path: Path, kind: str, source: SourceConfig, corpus: Corpus) -> Answers:
    """Return the papers that answer each query, and those that were shown but do not.

    The table has query-id and paper-id (or corpus-id); teacher and negative-id are optional. By
    ``kind``, every row is a positive (``positives``, which no score or click may deny), or those
    with a column score from the threshold on (``judgments``, and ``links``, whose queries are
    papers themselves), or those with 1 and not 0 in a column clicked (``clicks``).
    """
    papers = f"{source.space}:"
    queries = papers if kind == "links" else f"{source.name}/query:"
    spaces = {"query": queries, "paper": papers, "negative": papers}
    known = " ".join(
        f"LEFT JOIN (FROM known WHERE space = {literal(space)}) AS {name} ON {name}.id = s.{name}"
        for name, space in spaces.items()
    )
    fix = _unknown_paper(source.space)
    query_kind = "paper" if kind == "links" else "query"
    query_fix = fix if kind == "links" else "add the query, remove this line, or pass --skip-bad"
    problems = {
        "paper": _Problem(
            "paper.row IS NULL", "s.paper", "column 'paper-id' names an unknown paper", fix
        ),
        "query": _Problem(
            "query.row IS NULL",
            "s.query",
            f"column 'query-id' names an unknown {query_kind}",
            query_fix,
        ),
        "self": _Problem(
            "query.row = paper.row", "s.query", "paper is linked to itself", "remove this line"
        ),
        "below": _Problem(
            "s.negative <> '' AND NOT positive",
            "s.negative",
            "column 'negative-id' is set for a pair below the threshold",
            "set negative-id only for positives, or leave it empty",
        ),
        "negative": _Problem(
            "s.negative <> '' AND negative.row IS NULL",
            "s.negative",
            "column 'negative-id' names an unknown paper",
            fix,
        ),
        "own": _Problem(
            "negative.row IN (query.row, paper.row)",
            "s.negative",
            "hard negative is the query or the answer",
            "name another paper or leave it empty",
        ),
    }
    if kind == "positives":  # qrels of other tools list papers that are not relevant, too
        problems["low"] = _Problem(
            "NOT positive",
            "s.paper",
            "a positive's score is below the threshold, or clicked is 0",
            "give the file as judgments or clicks, which read these columns, or remove them",
        )
    corpus.read(
        "answers",
        "SELECT line, query.row AS query, paper.row AS paper, negative.row AS negative, positive, "
        f"teacher, {_problem_columns(problems)} FROM ({{rows}}) AS s {known}",
        answer_rows(path, kind, source.score_threshold),
    )
    _warn_of_forms(corpus, "answers", path, *spaces.values())
    _reject(corpus, "answers", path, problems)
    good = "FROM answers WHERE problem IS NULL AND"
    triples = corpus.arrays(f"SELECT query, paper, negative {good} negative IS NOT NULL")
    columns = "query, paper, teacher, line"
    scored = corpus.arrays(f"SELECT {columns} {good} teacher IS NOT NULL ORDER BY line")
    scored_queries, scored_papers, scores, lines = map(np.asarray, scored.values())
    answers = Answers(
        path,
        positives=corpus.columns(f"SELECT query, paper {good} positive"),
        shown=corpus.columns(f"SELECT query, paper {good} NOT positive"),
        triples=np.stack([np.asarray(c, np.int64) for c in triples.values()], axis=1),
        scored=(scored_queries.astype(np.int64), scored_papers.astype(np.int64)),
        scores=scores,
        lines=lines,
    )
    _check_scores([answers])  # before other files are read
    return answers


def teacher_scores(answers: Sequence[Answers]) -> TeacherScores | None:
    """Concatenate the teacher scores of several files; ``None`` if there are none.

    A pair with two different scores is a DataError.
    """
    scored = [answer for answer in answers if len(answer.scores)]
    if not scored:
        return None
    columns = [answer.scored for answer in scored]
    queries, papers = (np.concatenate(column) for column in zip(*columns, strict=True))
    _check_scores(scored)
    return TeacherScores(queries, papers, np.concatenate([answer.scores for answer in scored]))


def _check_scores(scored: Sequence[Answers]) -> None:
    """Check that no pair has two different teacher scores, in one file or in two."""
    columns = [(*answer.scored, answer.scores) for answer in scored]
    queries, papers, scores = (np.concatenate(column) for column in zip(*columns, strict=True))
    if conflict := conflict_of(queries, papers, scores):
        places = [(answer.path, int(line)) for answer in scored for line in answer.lines]
        (path, line), (other, before) = places[conflict[1]], places[conflict[0]]
        fix = f"keep one; the other is in {'' if other == path else f'{other}, '}line {before}"
        value = float(scores[conflict[1]])
        raise DataError(TWO_SCORES, path=path, line=line, value=value, fix=fix)


def reject_unanswered(queries: FileTexts, source: SourceConfig, corpus: Corpus) -> None:
    """Reject every query of a file without a positive in the answers read last."""
    unanswered = corpus.rows(
        f"SELECT line, id FROM {queries.table} JOIN {queries.placed} USING (line) "
        "ANTI JOIN (SELECT query AS row FROM answers WHERE positive AND problem IS NULL) AS a "
        "USING (row) ORDER BY line"
    )
    least = f" with a score from score_threshold ({source.score_threshold:g}) on"
    for line, identifier in unanswered:
        missing = f"positive{least if source.judgments else ''}"
        fix = f"give it a {missing}, remove it, or pass --skip-bad"
        value = f"{source.name}/query:{identifier}"
        problem = "query without a positive"
        corpus.rejects.refuse(problem, queries.path, line, value=value, fix=fix)


def read_targets(reader: TargetReader, corpus: Corpus) -> None:
    """Read the target table of one task."""
    column, namespace = reader.config.column, reader.source.space
    values = {
        "paper": ('filled("paper-id")', pa.string()),
        "value": (quoted(column), pa.string()),
    }
    parse = partial(_target, column=column)
    rows = table_rows(reader.path, (PAPER_COLUMN, column), values, parse)
    known = f"known WHERE space = {literal(f'{namespace}:')}"
    corpus.read(
        "targets",
        f"SELECT line, row, paper, value FROM ({{rows}}) LEFT JOIN (FROM {known}) ON id = paper",
        rows,
    )
    for line, row, paper, value in corpus.rows("FROM targets ORDER BY line"):
        record = Record(reader.path, line, {"paper-id": paper, column: value})
        try:
            if row is None:
                problem = "column 'paper-id' names an unknown paper"
                raise record.error(problem, value=paper, fix=_unknown_paper(namespace))
            reader.add_row(row, record)
        except DataError as error:
            corpus.rejects.reject(error)


def _target(record: Record, column: str) -> Mapping[str, Any]:
    paper = record.identifier("paper-id")
    return {"line": record.line, "paper": paper, "value": record.fields[column]}


def _problem_columns(problems: Mapping[str, _Problem]) -> str:
    """Return SQL columns ``problem``, the first whose condition is met, and its ``value``."""
    names = " ".join(f"WHEN {p.condition} THEN {literal(name)}" for name, p in problems.items())
    values = " ".join(f"WHEN {p.condition} THEN {p.value}" for p in problems.values())
    return f"CASE {names} END AS problem, CASE {values} END AS value"


def _warn_of_forms(corpus: Corpus, table: str, path: Path, *spaces: str) -> None:
    ids = f"SELECT value AS id FROM {table} WHERE problem IS NOT NULL"
    corpus.warn_of_forms(path, ids, *spaces)


def _reject(corpus: Corpus, table: str, path: Path, problems: Mapping[str, _Problem]) -> None:
    """Reject the rows of a table that have one of the problems, in line order."""
    names = ", ".join(literal(name) for name in problems)
    bad = f"FROM {table} WHERE problem IN ({names})"
    more = ""
    if not corpus.rejects.skip_bad:
        alike = f"FROM {table} WHERE problem = (SELECT problem {bad} ORDER BY line LIMIT 1)"
        count = int(corpus.one(f"SELECT count(*) AS n {alike}")["n"]) - 1
        lines = [str(line) for (line,) in corpus.rows(f"SELECT line {alike} ORDER BY line LIMIT 3")]
        if count > 0:
            following = " and ".join(lines[1:])
            more = f" (and {count:,} more, the next on line {following})"
    for line, problem, value in corpus.rows(f"SELECT line, problem, value {bad} ORDER BY line"):
        _, _, message, fix = problems[problem]
        corpus.rejects.refuse(message, path, line, value=value, fix=fix + more)


def _unknown_paper(namespace: str) -> str:
    return f"add the paper to {namespace!r}, remove this line, or pass --skip-bad"
