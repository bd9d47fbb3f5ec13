"""Scores that a teacher, such as a cross-encoder, gave to pairs of query and candidate.

Shape legend: N pairs, G groups of a pair file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.data.pairs import PairFile
from scimult.data.text_store import open_arrow, write_arrow
from scimult.errors import DataError
from scimult.types import IntArray

FILE_NAME = "teacher.arrow"
VERSION = "1"
ScoreArray = NDArray[np.float32]


class TeacherScores:
    """Looks up scores by pair; pairs and scores are parallel arrays.

    Parameters
    ----------
    queries, candidates : IntArray
        Rows of the text store, shape ``(N,)``.
    scores : array of float
        Shape ``(N,)``.

    Raises
    ------
    DataError
        If a score is not finite, or a pair has two different ones.
    """

    def __init__(self, queries: IntArray, candidates: IntArray, scores: NDArray[np.floating]):
        values = np.asarray(scores, dtype=np.float32)
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError("score of a teacher is not finite", value=float(values[bad]))
        self._span = int(candidates.max(initial=0)) + 1
        order = np.lexsort((values, candidates, queries))
        keys = queries[order] * self._span + candidates[order]
        values = values[order]
        again = np.flatnonzero((keys[1:] == keys[:-1]) & (values[1:] != values[:-1]))
        if len(again):
            i = order[again[0]]
            raise DataError(
                "a pair has two different teacher scores",
                value=[
                    int(queries[i]),
                    int(candidates[i]),
                    *values[again[0] : again[0] + 2].tolist(),
                ],
                fix="keep one of them",
            )
        first = np.diff(keys, prepend=-1) != 0
        self._keys, self._values = keys[first], values[first]

    def __len__(self) -> int:
        return len(self._keys)

    def __call__(self, queries: IntArray, candidates: IntArray) -> ScoreArray:
        """Return the score of each pair, NaN where there is none."""
        scores = np.full(len(queries), np.nan, dtype=np.float32)
        if not len(self):
            return scores
        keys = queries * self._span + candidates
        places = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        known = (self._keys[places] == keys) & (candidates < self._span)
        scores[known] = self._values[places[known]]
        return scores

    @property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Rows of the queries and of the candidates, each pair once, ascending."""
        queries, candidates = np.divmod(self._keys, self._span)
        return queries, candidates

    def moved(self, new_rows: IntArray) -> tuple[TeacherScores | None, Counter[str]]:
        """Return the scores after texts have gone or been merged, and what became of the others.

        Pairs that become the same have the mean of their scores: a teacher scores two copies
        of a text almost, not quite, alike.

        Parameters
        ----------
        new_rows : IntArray
            New row of each text, -1 for those that went.
        """
        first, second = (new_rows[rows] for rows in self.pairs)
        stay = (first >= 0) & (second >= 0) & (first != second)
        span = int(new_rows.max(initial=0)) + 1
        keys, place = np.unique(first[stay] * span + second[stay], return_inverse=True)
        sums = np.bincount(place, self._values[stay].astype(np.float64), len(keys))
        counts = Counter(
            {
                "teacher scores removed with a text": int((~stay).sum()),
                "teacher scores that became one": int(stay.sum()) - len(keys),
            }
        )
        if not len(keys):
            return None, counts
        means = sums / np.bincount(place, minlength=len(keys))
        return TeacherScores(*np.divmod(keys, span), means), counts

    def write(self, folder: Path) -> None:
        """Write ``teacher.arrow`` into a prepared folder that is being made."""
        queries, candidates = self.pairs
        columns = {"query": queries, "candidate": candidates, "score": self._values}
        write_arrow(folder / FILE_NAME, "teacher", VERSION, columns)


def read_teacher_scores(folder: Path) -> TeacherScores | None:
    """Return the scores of a prepared folder; ``None`` if it has none.

    Raises
    ------
    DataError
        If the file is damaged or of another format version.
    """
    if not (folder / FILE_NAME).exists():
        return None
    table = open_arrow(folder / FILE_NAME, "teacher", VERSION)
    return TeacherScores(
        *(table.column(name).to_numpy() for name in ("query", "candidate", "score"))
    )


def scored_share(teacher: TeacherScores, file: PairFile) -> float:
    """Return the share of groups of which a teacher scored a positive and a hard negative."""
    scored_G = np.ones(len(file), dtype=np.bool_)
    for lists in (file.positives, file.negatives):
        known = ~np.isnan(teacher(file.queries[lists.owners], lists.values))
        scored_G &= np.bincount(lists.owners[known], minlength=len(file)) > 0
    return float(scored_G.mean())
