"""The best K of scores that arrive block by block, in an order that blocks do not change.

A score and the candidate's place among equal scores are one integer, its *key*: the larger key
is the better candidate. So lists are merged by sorting integers, and no tie is left open.

Shape legend: Q queries, K results per query, B candidates of one block, W kept keys of a query,
N groups of columns, G columns of a group, S survivors: (query, candidate) pairs that may be listed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scimult.errors import DataError

GROUP = 8
"""Columns of which only the largest score is compared at first."""

_ROOM = 64
_LOW = 0xFFFFFFFF
NO_KEY = torch.iinfo(torch.int64).min
_LOWEST = torch.finfo(torch.float32).min


class Best(Protocol):
    """What keeps the best candidates of Q queries."""

    def add(self, scores_QB: Tensor, places_B: Tensor) -> None:
        """Take the scores of one block of candidates, and their places among equal scores.

        Columns behind the last place hold -inf.
        """

    def keys(self) -> Tensor | None:
        """Return ascending keys, shape ``(Q, W)``; None if the best may not be among them."""


class ThresholdBest:
    """Keeps what reaches the K-th best score seen so far; for the host.

    Most scores of a block are seen only as the largest of a group, by one pass over the block.

    Parameters
    ----------
    n_queries, k : int
        How many lists, and how long.
    slack_Q : Tensor, optional
        A score this far below the K-th best is kept too, shape ``(Q,)``.
    rounding : float
        The same as a share of the score: what its type rounds away.
    most : int, optional
        No list of more keys is kept: there are too many near the K-th best.

    Raises
    ------
    DataError
        If ``k`` is negative; and, by ``add``, if a score that would be listed is not finite.
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
        self._keys_QW = torch.empty(n_queries, 0, dtype=torch.long)
        self._counts_Q = torch.zeros(n_queries, dtype=torch.long)
        self._cutoff_Q = torch.full((n_queries,), _LOWEST)
        self._full, self._crowded = 3 * self._k + _ROOM, False

    def add(self, scores_QB: Tensor, places_B: Tensor) -> None:
        """Take the scores of one block; -inf is never listed."""
        if self._crowded or not self._k or not scores_QB.numel():
            return
        peaks_QN = _peaks(scores_QB)
        if not self._counts_Q.any():
            # As many groups reach their K-th largest peak as there are results: so do scores.
            some = peaks_QN if peaks_QN.shape[1] >= 2 * self._k else scores_QB
            if some.shape[1] >= self._k:
                self._cutoff_Q = loosened(
                    _kth_largest(some, self._k), self._slack_Q, self._rounding
                )
        rows_S, columns_S = _reaching(scores_QB, peaks_QN, self._cutoff_Q)
        scores_S = _at(scores_QB, rows_S, columns_S)
        check_scores(scores_S)
        self._append(rows_S, keys_of(scores_S, places_B[columns_S]))

    def keys(self) -> Tensor | None:
        """Return ascending keys, shape ``(Q, W)``; None if more than ``most`` had to be kept."""
        self._compact()
        return None if self._crowded else self._keys_QW

    def _append(self, rows_S: Tensor, keys_S: Tensor) -> None:
        """Write keys, sorted by row, behind those that the rows hold."""
        added_Q = torch.bincount(rows_S, minlength=len(self._counts_Q))
        before_Q = self._counts_Q - (added_Q.cumsum(0) - added_Q)
        counts_Q = self._counts_Q + added_Q
        missing = int(counts_Q.max()) - self._keys_QW.shape[1]
        if missing > 0:
            spare_width = max(missing, self._full - self._keys_QW.shape[1]) + _ROOM
            spare = self._keys_QW.new_full((len(counts_Q), spare_width), NO_KEY)
            self._keys_QW = torch.cat([self._keys_QW, spare], dim=1)
        self._keys_QW[rows_S, torch.arange(len(rows_S)) + before_Q[rows_S]] = keys_S
        self._counts_Q = counts_Q
        if int(counts_Q.max()) > self._full:
            self._compact()

    def _compact(self) -> None:
        """Sort, find the K-th best, and drop what it rules out."""
        used = int(self._counts_Q.max()) if len(self._counts_Q) else 0
        keys_QW = self._keys_QW[:, :used].sort(dim=1).values
        if keys_QW.shape[1] > self._k > 0:
            kth_Q = keys_QW[:, -self._k]
            known_Q = kth_Q != NO_KEY
            cutoff_Q = loosened(scores_of(kth_Q), self._slack_Q, self._rounding)
            self._cutoff_Q = torch.where(known_Q, cutoff_Q, self._cutoff_Q)
            lowest_Q = kth_Q if self._slack_Q is None else _ordered(self._cutoff_Q) << 32
            kept = int((keys_QW >= lowest_Q[:, None]).sum(dim=1).max())
            keys_QW = keys_QW[:, -max(kept, self._k) :]
            self._crowded = self._most is not None and kept > self._most
        self._keys_QW = keys_QW
        self._counts_Q.fill_(keys_QW.shape[1])
        self._full = 2 * keys_QW.shape[1] + self._k + _ROOM


class FixedBest:
    """Keeps a fixed number of the best; for devices, which never wait for the host meanwhile.

    The best of a block lie in the groups with the largest peaks. Ties and slack are decided by
    the host at the end: whether more than the kept ones could be among the best.

    Parameters
    ----------
    n_queries, k : int
        How many lists, and how long.
    slack_Q, rounding : optional
        As in :class:`ThresholdBest`.
    device : torch.device or str
        Where the scores are.
    """

    def __init__(
        self,
        n_queries: int,
        k: int,
        *,
        slack_Q: Tensor | None = None,
        rounding: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._k, self._kept = check_length(k), 3 * k + _ROOM
        self._slack_Q, self._rounding = slack_Q, rounding
        self._keys_QW = torch.full((n_queries, self._kept), NO_KEY, device=device)

    def add(self, scores_QB: Tensor, places_B: Tensor) -> None:
        """Take the scores of one block; -inf is never listed."""
        peaks_QN = _peaks(scores_QB)
        columns_QW = torch.arange(scores_QB.shape[1], device=scores_QB.device)[None]
        if self._kept < peaks_QN.shape[1] < scores_QB.shape[1]:
            groups_QW = peaks_QN.topk(self._kept, dim=1, sorted=False).indices
            columns_QW = groups_QW[:, None, :] + _first_columns(scores_QB, peaks_QN)[:, None]
            columns_QW = columns_QW.flatten(1)
            scores_QB = scores_QB.gather(1, columns_QW)
        keys_QB = keys_of(scores_QB, places_B[columns_QW.clamp(max=len(places_B) - 1)])
        keys_QB = torch.where(scores_QB.isneginf(), NO_KEY, keys_QB)
        keys_QB = torch.cat([self._keys_QW, keys_QB], dim=1)
        self._keys_QW = keys_QB.topk(self._kept, dim=1, sorted=False).values

    def keys(self) -> Tensor | None:
        """Return ascending keys, shape ``(Q, W)``; None if others could be among the best."""
        keys_QW = self._keys_QW.sort(dim=1).values
        found_QW = scores_of(keys_QW)
        check_scores(found_QW[keys_QW != NO_KEY])
        if not self._k:
            return keys_QW
        cutoff_Q = loosened(found_QW[:, -self._k], self._slack_Q, self._rounding)
        last_Q = keys_QW[:, 0]
        open_Q = (last_Q != NO_KEY) & (found_QW[:, 0] >= cutoff_Q)
        return None if bool(open_Q.any()) else keys_QW


def lists_of(keys_QW: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return scores and places of the best ``k`` of ascending keys, best first, each ``(Q, K)``.

    A list that is shorter ends in -inf and -1.
    """
    best_QK = keys_QW.flip(1)[:, :k]
    best_QK = torch.nn.functional.pad(best_QK, (0, k - best_QK.shape[1]), value=NO_KEY)
    none_QK = best_QK == NO_KEY
    scores_QK = scores_of(best_QK).masked_fill(none_QK, -torch.inf)
    return scores_QK, places_of_keys(best_QK).masked_fill(none_QK, -1)


def keys_of(scores: Tensor, places: Tensor) -> Tensor:
    """Return the keys of float32 scores of candidates with these places; NaN is the largest."""
    # The sum makes -0 what it is equal to.
    ordered = _ordered(torch.where(scores.isnan(), torch.inf, scores + 0.0))
    return (ordered << 32) | (_LOW - places)


def scores_of(keys: Tensor) -> Tensor:
    """Return the scores that keys were made of."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def places_of_keys(keys: Tensor) -> Tensor:
    """Return the places that keys were made of."""
    return _LOW - (keys & _LOW)


def loosened(kth_Q: Tensor, slack_Q: Tensor | None, rounding: float) -> Tensor:
    """Return the score that a candidate must reach where the K-th best has ``kth_Q``.

    With scores that are off by ``slack / 2``, then rounded to ``rounding`` of their size.
    """
    if slack_Q is None:
        return kth_Q.clamp(min=_LOWEST)
    low_Q = kth_Q - rounding * kth_Q.abs() - slack_Q
    return (low_Q - rounding * low_Q.abs()).clamp(min=_LOWEST)


def check_scores(scores: Tensor) -> None:
    """Refuse NaN and infinity.

    Raises
    ------
    DataError
        With their number and the first of them.
    """
    check_finite(scores, "a score")


def check_finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity.

    Raises
    ------
    DataError
        With their number and the first of them.
    """
    # The sum is finite only if all are, and takes one pass; all may be even if it is not.
    if bool(values.sum().isfinite()) or bool(values.isfinite().all()):
        return
    bad = ~values.isfinite()
    raise DataError(
        f"{what} is not finite in {int(bad.sum())} of {values.numel()} numbers",
        value=float(values[bad][0]),
        fix="check the model: its weights or activations overflowed",
    )


def check_length(k: int) -> int:
    """Return the length of a list.

    Raises
    ------
    DataError
        If it is negative.
    """
    if k < 0:
        fix = "ask for 0 results or more"
        raise DataError("length of a list is negative", value=k, fix=fix)
    return k


def _peaks(scores_QB: Tensor) -> Tensor:
    """Return the largest score of each group, which is every N-th column, or one column."""
    if scores_QB.shape[1] % GROUP:
        return scores_QB
    queries, columns = scores_QB.shape
    if scores_QB.stride(1) == 1:
        return scores_QB.view(queries, GROUP, columns // GROUP).amax(dim=1)
    # Of a transposed matrix, in the order in which it lies in memory.
    return scores_QB.T.view(GROUP, columns // GROUP, queries).amax(dim=0).T.contiguous()


def _first_columns(scores_QB: Tensor, peaks_QN: Tensor) -> Tensor:
    """Return what is added to a group's number for each of its columns, shape ``(G,)``."""
    step = peaks_QN.shape[1]
    return torch.arange(0, scores_QB.shape[1], step, device=scores_QB.device)


def _reaching(scores_QB: Tensor, peaks_QN: Tensor, cutoff_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the scores that reach their row's cutoff, sorted by row.

    NaN reaches every cutoff.
    """
    rows_S, groups_S = _places((peaks_QN < cutoff_Q[:, None]).logical_not_())
    if peaks_QN.shape[1] == scores_QB.shape[1]:
        return rows_S, groups_S
    columns_SG = groups_S[:, None] + _first_columns(scores_QB, peaks_QN)
    found_SG = _at(scores_QB, rows_S[:, None], columns_SG) < cutoff_Q[rows_S, None]
    places_S, members_S = _places(found_SG.logical_not_())
    return rows_S[places_S], columns_SG[places_S, members_S]


def _places(mask_QB: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of what is true, sorted by row; by numpy, six times as fast."""
    flat = torch.from_numpy(np.flatnonzero(mask_QB.numpy()))
    rows = flat.div(mask_QB.shape[1], rounding_mode="floor")
    return rows, flat - rows * mask_QB.shape[1]


def _at(scores_QB: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``scores_QB[rows, columns]``, in half the time."""
    by_row, by_column = scores_QB.stride()
    flat = (scores_QB if by_column == 1 else scores_QB.T).reshape(-1)
    places = rows * by_row + columns * by_column
    return flat.index_select(0, places.flatten()).view(places.shape)


def _kth_largest(values_QB: Tensor, k: int) -> Tensor:
    if values_QB.device.type == "cpu":
        # Many times as fast as torch's own selection.
        place = values_QB.shape[1] - k
        return torch.from_numpy(np.partition(values_QB.numpy(), place, axis=1)[:, place].copy())
    return values_QB.topk(k, dim=1).values[:, -1]


def _ordered(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores; of 32 bits, as int64."""
    bits = scores.view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
