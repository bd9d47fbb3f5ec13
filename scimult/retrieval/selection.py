"""The best K of scores that arrive block by block, independent of how blocks are cut.

A score and the candidate's position (place) among equal scores form one integer, its *key*: the
larger key is the better candidate. So lists are merged by sorting integers, without open ties.

Shape legend: Q queries, K results per query, B candidates of one block, W kept keys of a query,
N groups of columns, G columns of a group, S survivors: (query, candidate) pairs that may be listed.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.errors import DataError
from scimult.types import FloatArray, IntArray

GROUP = 8
"""Columns represented at first by their largest score alone."""

_ROOM = 64
# Once this many candidates per result were seen, few of a block are among the best so far.
_SPARSE = 128
# As many are sorted by a device before it has started the operations that find groups.
_FEW_SCORES = 1 << 23
_LOW = 0xFFFFFFFF
_OVERFLOWED = "check the model: its weights or activations overflowed"
NO_KEY = torch.iinfo(torch.int64).min
_LOWEST = torch.finfo(torch.float32).min


class ThresholdBest:
    """Keeps whatever reaches the K-th best score seen so far; for the host.

    Most scores are seen only through the largest of their group, in one pass over the block.

    Parameters
    ----------
    n_queries, k : int
        Number of lists, and results per list.
    slack_Q : Tensor, optional
        Keep scores down to this far below the K-th best too, shape ``(Q,)``.
    rounding : float
        The same as a share of the score: what its type rounds away.
    most : int, optional
        Give up a list that needs more keys: too many are near the K-th best.

    Raises
    ------
    DataError
        If ``k`` is negative; from ``add``, if a score that would be listed is not finite.
    """

    def __init__(
        self,
        n_queries: int,
        k: int,
        *,
        slack_Q: Tensor | None = None,
        rounding: float = 0.0,
        most: int | None = None,
    ) -> None:
        self._k, self._most = check_length(k), most
        self._slack_Q, self._rounding = slack_Q, rounding
        self._keys_QW = np.empty((n_queries, 0), dtype=np.int64)
        self._counts_Q = np.zeros(n_queries, dtype=np.int64)
        self._cutoff_Q = torch.full((n_queries,), _LOWEST, dtype=torch.float32)
        self._full, self._seen = self._k + self._spare, 0
        self._open_Q = np.zeros(n_queries, dtype=bool)

    @property
    def _spare(self) -> int:
        """Keys a list may have in excess: sorting them costs as much as a late cutoff."""
        return self._k // 2 + _ROOM

    def add(self, scores_QB: Tensor, places_B: Tensor) -> None:
        """Add the scores of one block, and its candidates' positions among equal scores.

        -inf is never listed; columns beyond the last position hold it.
        """
        if not self._k or not scores_QB.numel() or self._open_Q.all():
            return
        # Queries are contiguous, as in products on the host.
        scores_BQ = scores_QB.T.contiguous()
        peaks_NQ = _peaks(scores_BQ, self._k)
        if not self._counts_Q.any() and len(peaks_NQ) >= self._k:
            # If K groups reach the K-th largest peak, so do K scores.
            kth_Q = _kth_largest(peaks_NQ.T, self._k)
            self._cutoff_Q = loosened(kth_Q, self._slack_Q, self._rounding)
        self._seen += len(places_B)
        # Early on, many candidates are among the best so far: checking groups first saves nothing.
        first = scores_BQ if self._seen < _SPARSE * self._k else peaks_NQ
        rows_S, columns_S, scores_S = _reaching(
            scores_BQ.numpy(), first.numpy(), self._cutoff_Q.numpy()
        )
        values_S = torch.from_numpy(scores_S)
        check_finite(values_S, "a score")
        self._append(rows_S, keys_of(values_S, places_B[columns_S]).numpy())

    def keys(self) -> Tensor:
        """Return ascending keys, shape ``(Q, W)``."""
        self._compact()
        return torch.from_numpy(self._keys_QW)

    def open_queries(self) -> Tensor:
        """Return, shape ``(Q,)``, for which queries ``keys`` gave up: they have none."""
        return torch.from_numpy(self._open_Q)

    def _append(self, rows_S: IntArray, keys_S: IntArray) -> None:
        """Append keys, sorted by row, to those of each row."""
        added_Q = np.bincount(rows_S, minlength=len(self._counts_Q))
        before_Q = self._counts_Q - (added_Q.cumsum() - added_Q)
        counts_Q = self._counts_Q + added_Q
        missing = int(counts_Q.max()) - self._keys_QW.shape[1]
        if missing > 0:
            spare_width = max(missing, self._full - self._keys_QW.shape[1])
            spare = np.full((len(counts_Q), spare_width), NO_KEY)
            self._keys_QW = np.concatenate([self._keys_QW, spare], axis=1)
        self._keys_QW[rows_S, np.arange(len(rows_S)) + before_Q[rows_S]] = keys_S
        self._counts_Q = counts_Q
        if int(counts_Q.max()) > self._full:
            self._compact()

    def _compact(self) -> None:
        """Sort, find the K-th best, and drop everything below it."""
        used = int(self._counts_Q.max()) if len(self._counts_Q) else 0
        keys_QW = np.sort(self._keys_QW[:, :used], axis=1)
        if keys_QW.shape[1] > self._k > 0:
            kth_Q = torch.from_numpy(keys_QW[:, -self._k].copy())
            known_Q = kth_Q != NO_KEY
            cutoff_Q = loosened(scores_of(kth_Q), self._slack_Q, self._rounding)
            self._cutoff_Q = torch.where(known_Q, cutoff_Q, self._cutoff_Q)
            lowest_Q = kth_Q if self._slack_Q is None else _ordered(self._cutoff_Q) << 32
            widths_Q = (keys_QW >= lowest_Q.numpy()[:, None]).sum(axis=1)
            if self._most is not None:
                self._open_Q |= widths_Q > self._most
                keys_QW[self._open_Q], widths_Q[self._open_Q] = NO_KEY, 0
                self._cutoff_Q[torch.from_numpy(self._open_Q)] = torch.inf
            keys_QW = keys_QW[:, -max(int(widths_Q.max()), self._k) :]
        self._keys_QW = keys_QW
        self._counts_Q.fill(keys_QW.shape[1])
        self._full = keys_QW.shape[1] + self._spare


class FixedBest:
    """Keeps a fixed number of the best; for devices, which then need not wait for the host.

    The best of a block are in the groups with the largest peaks. All else is decided at the end:
    `open_queries` tells whether candidates beyond those kept could be among the best.

    Parameters
    ----------
    k : int
        Results per list.
    slack_Q, rounding : optional
        As in `ThresholdBest`.
    ends_on : str or torch.device
        Where the end is decided; a few short lists are sorted by the host before a device starts.
    """

    def __init__(
        self,
        k: int,
        *,
        slack_Q: Tensor | None = None,
        rounding: float = 0.0,
        ends_on: str | torch.device = "cpu",
    ) -> None:
        self._k, self._width = check_length(k), 3 * k + _ROOM
        self._slack_Q, self._rounding, self._ends_on = slack_Q, rounding, ends_on
        # Descending scores, and the positions of their candidates among equal ones.
        self._best: list[Tensor] = []

    def add(self, scores_QB: Tensor, places_B: Tensor) -> None:
        """Add the scores of one block, as `ThresholdBest.add`."""
        scores_QW, columns_QW = best_of_groups(scores_QB, self._width)
        places_QW = places_B[columns_QW.clamp_(max=len(places_B) - 1)]
        if self._best:
            pairs = zip(self._best, (scores_QW, places_QW), strict=True)
            scores_QW, places_QW = (torch.cat(pair, dim=1) for pair in pairs)
            scores_QW, at_QW = scores_QW.topk(min(self._width, scores_QW.shape[1]), dim=1)
            places_QW = places_QW.gather(1, at_QW)
        self._best = [scores_QW, places_QW]

    def keys(self) -> Tensor:
        """Return ascending keys, shape ``(Q, W)``; waits for the device."""
        # NaN and infinity come first.
        first_Q = self._scores_QW[:, 0]
        check_finite(first_Q[~first_Q.isneginf()], "a score")
        reach_QW = self._scores_QW >= self._cutoff_Q[:, None]
        width = int(reach_QW.sum(dim=1).max())
        places_QW = self._best[1][:, :width].to(reach_QW.device)
        keys_QW = keys_of(self._scores_QW[:, :width], places_QW)
        return sorted_keys(keys_QW.masked_fill_(~reach_QW[:, :width], NO_KEY))

    def open_queries(self) -> Tensor:
        """Return, shape ``(Q,)``, for which queries others could be among the best too."""
        full = self._k > 0 and self._scores_QW.shape[1] == self._width
        return (self._scores_QW[:, -1] >= self._cutoff_Q) & full

    @cached_property
    def _scores_QW(self) -> Tensor:
        return self._best[0].to(self._ends_on).float()

    @cached_property
    def _cutoff_Q(self) -> Tensor:
        kth_Q = self._scores_QW[:, min(self._k, self._scores_QW.shape[1]) - 1]
        return loosened(kth_Q, self._slack_Q, self._rounding)


def best_of_groups(scores_QB: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return descending scores and columns of the best of each row, each ``(Q, W)``.

    They are in the groups with the largest peaks, so most scores are read once, to find those.
    ``W`` is ``width``, or less if there are fewer columns.
    """
    queries, columns = scores_QB.shape
    groups, left = divmod(columns, GROUP)
    if width >= groups or left or scores_QB.numel() <= _FEW_SCORES:
        return scores_QB.topk(min(width, columns), dim=1)
    peaks_QN = scores_QB.reshape(queries, GROUP, groups).amax(dim=1)
    groups_QW = peaks_QN.topk(width, dim=1, sorted=False).indices
    first_G = torch.arange(0, columns, groups, device=scores_QB.device)
    columns_QW = (groups_QW[:, None, :] + first_G[:, None]).flatten(1)
    scores_QW, at_QW = scores_QB.gather(1, columns_QW).topk(width, dim=1)
    return scores_QW, columns_QW.gather(1, at_QW)


def lists_of(keys_QW: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return scores and positions of the ``k`` largest ascending keys, best first, each ``(Q, K)``.

    Shorter lists are padded with -inf and -1.
    """
    best_QK = keys_QW[:, max(0, keys_QW.shape[1] - k) :].flip(1)
    best_QK = torch.nn.functional.pad(best_QK, (0, k - best_QK.shape[1]), value=NO_KEY)
    none_QK = best_QK == NO_KEY
    scores_QK = scores_of(best_QK).masked_fill(none_QK, -torch.inf)
    return scores_QK, places_of_keys(best_QK).masked_fill(none_QK, -1)


def sorted_keys(keys_QW: Tensor) -> Tensor:
    """Sort the keys of each query; on a CPU by numpy, nine times as fast."""
    if keys_QW.device.type != "cpu":
        return keys_QW.sort(dim=1).values
    return torch.from_numpy(np.sort(keys_QW.numpy(), axis=1))


def keys_of(scores: Tensor, places: Tensor) -> Tensor:
    """Return the keys of candidates with these float32 scores and positions; NaN is largest."""
    # Adding zero turns -0 into 0.
    ordered = _ordered(torch.where(scores.isnan(), torch.inf, scores + 0.0))
    return (ordered << 32) | (_LOW - places)


def scores_of(keys: Tensor) -> Tensor:
    """Return the scores in keys."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def places_of_keys(keys: Tensor) -> Tensor:
    """Return the positions in keys."""
    return _LOW - (keys & _LOW)


def loosened(kth_Q: Tensor, slack_Q: Tensor | None, rounding: float) -> Tensor:
    """Return the score that a candidate must reach if the K-th best has ``kth_Q``.

    Scores are off by up to ``slack / 2``, then rounded to ``rounding`` of their size.
    """
    # A share of -inf is not a number.
    kth_Q = kth_Q.clamp(min=_LOWEST)
    if slack_Q is None:
        return kth_Q
    # Queries too long for their length have an infinite slack, and no share of that is a number.
    low_Q = (kth_Q - rounding * kth_Q.abs() - slack_Q).nan_to_num(_LOWEST, neginf=_LOWEST)
    return (low_Q - rounding * low_Q.abs()).clamp(min=_LOWEST)


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinity.

    Raises
    ------
    DataError
        With their number and the first of them.
    """
    # One pass: the sum is finite only if all are; overflow of the sum needs the closer look.
    if math.isfinite(values.sum().item()) or bool(values.isfinite().all()):
        return
    bad = ~values.isfinite()
    raise DataError(
        f"{name} is not finite in {int(bad.sum())} of {values.numel()} numbers",
        value=float(values[bad][0]),
        fix=_OVERFLOWED,
    )


def check_length(k: int) -> int:
    """Return ``k``, a list's length.

    Raises
    ------
    DataError
        If ``k`` is negative.
    """
    if k < 0:
        fix = "request 0 or more results"
        raise DataError("length of a list is negative", value=k, fix=fix)
    return k


def check_listed(rows_QK: IntArray, candidates: int, excluded_Q: IntArray) -> None:
    """Check that only a lack of candidates makes lists short: -inf, an overflow, is never listed.

    Raises
    ------
    DataError
        With the number of queries whose lists are too short.
    """
    wanted_Q = np.minimum(rows_QK.shape[1], candidates - (excluded_Q >= 0))
    short = int(((rows_QK >= 0).sum(axis=1) < wanted_Q).sum())
    if short:
        problem = f"a score is not finite for {short} of {len(rows_QK)} queries"
        raise DataError(problem, fix=_OVERFLOWED)


def check_excluded(exclude_Q: IntArray | None, queries: int) -> None:
    """Check that there is one candidate to leave out, or -1, for each query.

    Raises
    ------
    DataError
        If there are more or fewer.
    """
    if exclude_Q is not None and np.shape(exclude_Q) != (queries,):
        problem = f"excluded rows of shape {np.shape(exclude_Q)} for {queries} queries"
        raise DataError(problem, fix="give one per query, -1 for none")


def leave_out(scores_QB: Tensor, columns_Q: IntArray) -> None:
    """Set one column per row to -inf where it lies inside the block."""
    rows = np.flatnonzero((columns_Q >= 0) & (columns_Q < scores_QB.shape[1]))
    if len(rows):
        at = torch.from_numpy(rows), torch.from_numpy(columns_Q[rows])
        scores_QB[tuple(x.to(scores_QB.device) for x in at)] = -torch.inf


def _peaks(scores_BQ: Tensor, k: int) -> Tensor:
    """Return the largest score of each group (every N-th row), shape ``(N, Q)``.

    Groups shrink until they divide the rows and number at least 2K.
    """
    rows, queries = scores_BQ.shape
    group = GROUP
    while group > 1 and (rows % group or rows < 2 * k * group):
        group //= 2
    if group == 1:
        return scores_BQ
    return scores_BQ.view(group, rows // group, queries).amax(dim=0)


def _reaching(
    scores_BQ: FloatArray, peaks_NQ: FloatArray, cutoff_Q: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return queries, columns and scores that reach their query's cutoff, sorted by query.

    NaN reaches every cutoff. ``peaks_NQ`` may be the scores themselves.
    """
    groups, queries = peaks_NQ.shape
    at_S = np.flatnonzero(~(peaks_NQ < cutoff_Q))
    columns_S, rows_S = np.divmod(at_S, queries)
    if groups == len(scores_BQ):
        scores_S = scores_BQ.reshape(-1).take(at_S)
    else:
        scores_GS = scores_BQ.reshape(len(scores_BQ) // groups, -1).take(at_S, axis=1)
        flat_S = np.flatnonzero(~(scores_GS < cutoff_Q[rows_S]))
        members_S, hits_S = np.divmod(flat_S, max(1, len(at_S)))
        rows_S, columns_S = rows_S[hits_S], columns_S[hits_S] + groups * members_S
        scores_S = scores_GS.reshape(-1).take(flat_S)
    # 16-bit numbers are sorted in two passes.
    order_S = np.argsort(rows_S.astype(np.min_scalar_type(queries)), kind="stable")
    return rows_S[order_S], columns_S[order_S], scores_S[order_S]


def _kth_largest(values_QB: Tensor, k: int) -> Tensor:
    """With numpy, many times as fast as torch's own selection."""
    index = values_QB.shape[1] - k
    return torch.from_numpy(np.partition(values_QB.numpy(), index, axis=1)[:, index].copy())


def _ordered(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores: 32 bits, as int64."""
    bits = scores.view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
