"""A teacher's scores of query-candidate pairs, such as those of a cross-encoder.

Shape legend: N pairs, G groups of a pair file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.data.pairs import PairFile
from scimult.data.text_store import numbers, open_arrow, write_arrow
from scimult.errors import DataError
from scimult.types import IntArray

FILE_NAME = "teacher.arrow"
TWO_SCORES = "a pair has two different teacher scores"
ScoreArray = NDArray[np.float32]


def conflict_of(
    queries: IntArray, candidates: IntArray, scores: NDArray[np.floating]
) -> tuple[int, int] | None:
    """Return the positions of two different scores, as float32, of one pair; None without any."""
    order = np.lexsort((candidates, queries))  # stable: of one pair, in the order given
    same = (np.diff(queries[order]) == 0) & (np.diff(candidates[order]) == 0)
    values = scores[order].astype(np.float32)
    conflicts = np.flatnonzero(same & (values[1:] != values[:-1]))
    return (int(order[conflicts[0]]), int(order[conflicts[0] + 1])) if len(conflicts) else None


class TeacherScores:
    """Scores by pair, given as parallel arrays of text rows and finite numbers.

    A pair with two different scores is an error.
    """

    def __init__(self, queries: IntArray, candidates: IntArray, scores: NDArray[np.floating]):
        values = np.asarray(scores, dtype=np.float32)
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError("teacher score is not finite", value=float(values[bad]))
        if conflict := conflict_of(queries, candidates, values):
            one, other = conflict
            pair = int(queries[one]), int(candidates[one])
            raise DataError(
                TWO_SCORES,
                value=[*pair, *values[[one, other]].tolist()],
                fix="keep one of them",
            )
        self._span = int(candidates.max(initial=0)) + 1
        self._keys, first = np.unique(queries * self._span + candidates, return_index=True)
        self._values = values[first]

    def __len__(self) -> int:
        return len(self._keys)

    def __call__(self, queries: IntArray, candidates: IntArray) -> ScoreArray:
        """Return the score of each pair, NaN where there is none."""
        scores = np.full(len(queries), np.nan, dtype=np.float32)
        if not len(self):
            return scores
        keys = queries * self._span + candidates
        indices = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        known = (self._keys[indices] == keys) & (candidates < self._span)
        scores[known] = self._values[indices[known]]
        return scores

    @property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Rows of queries and candidates, each pair once, ascending."""
        queries, candidates = np.divmod(self._keys, self._span)
        return queries, candidates

    def moved(self, new_rows: IntArray) -> tuple[TeacherScores | None, Counter[str]]:
        """Return the scores after texts were removed or merged, and counts of lost scores.

        Pairs that become equal get their mean score: a teacher scores two copies of a text
        almost, but not quite, alike.

        ``new_rows`` has the new row of each text, -1 for removed ones.
        """
        queries, candidates = (new_rows[rows] for rows in self.pairs)
        stay = (queries >= 0) & (candidates >= 0) & (queries != candidates)
        span = int(new_rows.max(initial=0)) + 1
        keys, key_of = np.unique(queries[stay] * span + candidates[stay], return_inverse=True)
        sums = np.bincount(key_of, self._values[stay].astype(np.float64), len(keys))
        counts = Counter(
            {
                "teacher scores removed with a text": int((~stay).sum()),
                "teacher scores that became one": int(stay.sum()) - len(keys),
            }
        )
        if not len(keys):
            return None, counts
        means = sums / np.bincount(key_of, minlength=len(keys))
        return TeacherScores(*np.divmod(keys, span), means), counts

    def write(self, folder: Path) -> None:
        """Write ``teacher.arrow`` into a prepared folder, in place of earlier scores."""
        queries, candidates = self.pairs
        columns = {"query": queries, "candidate": candidates, "score": self._values}
        # The old file is also that of a step of the preparation, by a hard link.
        (folder / FILE_NAME).unlink(missing_ok=True)
        write_arrow(folder / FILE_NAME, "teacher", columns)


def read_teacher_scores(folder: Path) -> TeacherScores | None:
    """Return the scores of a prepared folder; ``None`` if it has none.

    Raises
    ------
    DataError
        If the file is damaged or of another format version.
    """
    if not (folder / FILE_NAME).exists():
        return None
    table = open_arrow(folder / FILE_NAME, "teacher")
    return TeacherScores(*(numbers(table.column(name)) for name in ("query", "candidate", "score")))


def scored_share(teacher: TeacherScores, file: PairFile) -> float:
    """Return the share of groups with a scored positive and a scored hard negative."""
    scored_G = np.ones(len(file), dtype=np.bool_)
    for lists in (file.positives, file.negatives):
        known = ~np.isnan(teacher(file.queries[lists.owners], lists.values))
        scored_G &= np.bincount(lists.owners[known], minlength=len(file)) > 0
    return float(scored_G.mean())
