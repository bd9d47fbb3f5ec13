"""Ranked lists and judgments as arrays, and their TREC files.

Order of a ranked list, everywhere in the toolkit: higher score first; equal float32 scores by
*descending* document id. That is trec_eval's rule, which ignores the rank column of a run file, so
a list keeps its order and metrics when written as a TREC run.

Shape legend: Q queries, C candidates, K listed results per query (short lists padded with -1).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.files import atomic_file
from scimult.types import FloatArray, IntArray


@dataclass(frozen=True)
class Ranking:
    """The best candidates of each query, best first.

    Attributes
    ----------
    rows_QK : IntArray
        Candidate rows; -1 pads lists shorter than K, always at their end.
    scores_QK : FloatArray
        Their scores, float32; -inf where a row is -1.
    """

    rows_QK: IntArray
    scores_QK: FloatArray

    def __post_init__(self) -> None:
        assert self.rows_QK.shape == self.scores_QK.shape, "rows and scores differ in shape"

    @classmethod
    def empty(cls, queries: int, k: int) -> Ranking:
        """Return lists without a candidate, to fill in."""
        rows_QK = np.full((queries, k), -1, dtype=np.int64)
        return cls(rows_QK, np.full((queries, k), -np.inf, dtype=np.float32))

    def fill(self, queries: slice, part: Ranking) -> None:
        """Copy the lists of some queries, cut to the length of these."""
        width = min(self.rows_QK.shape[1], part.rows_QK.shape[1])
        self.rows_QK[queries, :width] = part.rows_QK[:, :width]
        self.scores_QK[queries, :width] = part.scores_QK[:, :width]

    def __len__(self) -> int:
        return len(self.rows_QK)


@dataclass(frozen=True)
class Qrels:
    """Graded relevance judgments of Q queries over a fixed list of candidates.

    Attributes
    ----------
    rows : Ragged
        Judged candidate rows of each query.
    grades : Ragged
        Their grades, aligned with ``rows``; 1 and above is relevant, 0 and below is not.
    candidates : int
        Number of candidates.
    """

    rows: Ragged
    grades: Ragged
    candidates: int

    def __post_init__(self) -> None:
        assert np.array_equal(self.rows.offsets, self.grades.offsets), "rows and grades differ"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def relevant_Q(self) -> IntArray:
        """Number of relevant candidates of each query."""
        relevant = self.rows.owners[self.grades.values > 0]
        return np.bincount(relevant, minlength=len(self)).astype(np.int64)

    def grades_of(self, rows_QK: IntArray) -> IntArray:
        """Look up the grade of every listed candidate; 0 for unjudged ones and for padding.

        Parameters
        ----------
        rows_QK : IntArray
            Candidate rows, -1 for padding.
        """
        keys = self.rows.owners * self.candidates + self.rows.values
        order = np.argsort(keys, kind="stable")
        keys, grades = np.append(keys[order], -1), np.append(self.grades.values[order], 0)
        wanted_QK = np.arange(len(rows_QK), dtype=np.int64)[:, None] * self.candidates + rows_QK
        index_QK = np.searchsorted(keys[:-1], wanted_QK)
        judged_QK = (keys[index_QK] == wanted_QK) & (rows_QK >= 0)
        return np.where(judged_QK, grades[index_QK], 0)


def id_order(ids: Sequence[str]) -> IntArray:
    """Return the rows of ``ids`` by descending id: the order of candidates with equal scores.

    Raises
    ------
    DataError
        If an id occurs twice.
    """
    order = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    for previous, row in itertools.pairwise(order):
        if ids[previous] == ids[row]:
            problem = f"candidates {row} and {previous} have the same id"
            raise DataError(problem, value=ids[row], fix="give every candidate its own id")
    return np.array(order, dtype=np.int64)


def places_of(order_C: IntArray) -> IntArray:
    """Invert an order of rows: return the position of each row in it."""
    place_C = np.empty(len(order_C), dtype=np.int64)
    place_C[order_C] = np.arange(len(order_C))
    return place_C


def write_run(
    path: Path | str,
    ranking: Ranking,
    query_ids: Sequence[str],
    candidate_ids: Sequence[str],
    tag: str,
) -> None:
    """Write ranked lists as a TREC run (``qid Q0 docid rank score tag``), atomically.

    Scores round-trip as float32. White space, which separates the columns, and the per cent sign
    are percent-encoded in ids.
    """
    names = [_column(name) for name in candidate_ids]
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for query, rows_K, scores_K in zip(
            query_ids, ranking.rows_QK, ranking.scores_QK, strict=True
        ):
            for rank, (row, score) in enumerate(zip(rows_K, scores_K, strict=True), start=1):
                if row >= 0:
                    columns = _column(query), "Q0", names[row], rank, f"{score:.9g}", _column(tag)
                    file.write(" ".join(map(str, columns)) + "\n")


def read_run(path: Path | str, query_ids: Sequence[str], candidate_ids: Sequence[str]) -> Ranking:
    """Read a TREC run over known queries and candidates, ordered by score and id.

    Queries missing from the run get an empty list, which every metric counts as zero.

    Raises
    ------
    DataError
        If a line does not have six columns, names an unknown id, repeats a document or has a
        non-finite score; the message gives file and line.
    """
    query_rows = {name: row for row, name in enumerate(query_ids)}
    candidate_rows = {name: row for row, name in enumerate(candidate_ids)}
    score_of: dict[tuple[int, int], float] = {}
    for line, (query_id, candidate_id, score) in enumerate(run_lines(path), start=1):
        query = _known(query_id, query_rows, "query", path, line)
        candidate = _known(candidate_id, candidate_rows, "document", path, line)
        if (query, candidate) in score_of:
            problem = f"document {candidate_id!r} is listed twice for query {query_id!r}"
            raise DataError(problem, path=path, line=line, fix="keep one of the lines")
        score_of[query, candidate] = score
    pairs = np.array(list(score_of), dtype=np.int64).reshape(-1, 2)
    scores = np.array(list(score_of.values()), dtype=np.float32)
    place_C = places_of(id_order(candidate_ids))
    return ranking_of_pairs(pairs[:, 0], pairs[:, 1], scores, len(query_ids), place_C)


def ranking_of_pairs(
    queries_P: IntArray,
    rows_P: IntArray,
    scores_P: FloatArray,
    n_queries: int,
    place_C: IntArray,
    least: int = 0,
) -> Ranking:
    """Sort P scored pairs, in any order, into one ranked list per query.

    Parameters
    ----------
    queries_P, rows_P, scores_P : array
        Query row, candidate row and float32 score of each pair.
    n_queries : int
        Number of lists; queries without a pair get an empty one.
    place_C : IntArray
        Position of each candidate among equal scores.
    least : int
        Length that lists are padded to if none has as many pairs.
    """
    order = np.lexsort((place_C[rows_P], -scores_P, queries_P))
    queries_P, rows_P, scores_P = queries_P[order], rows_P[order], scores_P[order]
    lengths_Q = np.bincount(queries_P, minlength=n_queries)
    columns_P = np.arange(len(queries_P)) - np.repeat(np.cumsum(lengths_Q) - lengths_Q, lengths_Q)
    width = int(lengths_Q.max(initial=least))
    ranking = Ranking.empty(n_queries, width)
    ranking.rows_QK[queries_P, columns_P] = rows_P
    ranking.scores_QK[queries_P, columns_P] = scores_P
    return ranking


def _column(name: str) -> str:
    return re.sub(r"[%\s]", lambda match: quote(match[0]), name)


def run_lines(path: Path | str) -> Iterator[tuple[str, str, float]]:
    """Yield query, document and score of each line of a TREC run.

    Raises
    ------
    DataError
        If a line does not have six columns or has a non-finite score.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the run: {error}", path=path, fix="check the file") from None
    for line, text in enumerate(lines, start=1):
        columns = text.split()
        if len(columns) != 6:
            problem = "expected 6 columns: query, Q0, document, rank, score, tag"
            fix = "evaluate again with --save-runs, or write the run in TREC format"
            raise DataError(problem, path=path, line=line, value=text, fix=fix)
        yield unquote(columns[0]), unquote(columns[2]), _score(columns[4], path, line)


def _known(name: str, rows: dict[str, int], kind: str, path: Path | str, line: int) -> int:
    if name not in rows:
        fix = "use the run of this data set"
        raise DataError(f"unknown {kind}", path=path, line=line, value=name, fix=fix)
    return rows[name]


def _score(text: str, path: Path | str, line: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not np.isfinite(score):
        raise DataError("score is not a finite number", path=path, line=line, value=text)
    return score
