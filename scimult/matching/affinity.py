"""How well each reviewer fits each submission, from the similarities of what they wrote.

Shape legend: S submissions, Q of a block, R reviewers, P publications, n publications of each
reviewer of a group, E entries of lists, D width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError
from scimult.products import products
from scimult.types import FloatArray, IntArray

BLOCK = 1024
# Similarities that are held at once: of a few megabytes, which a processor keeps at hand.
_HELD = 1 << 21
# Reviewers whose best are found together.
_TOGETHER = 64
_RULE = re.compile(r"(max|mean)|top(\d+)|percentile:(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Rule:
    """How the similarities of a reviewer's publications become one score.

    Parameters
    ----------
    best : int
        Mean of this many largest ones, or of all where there are fewer; 0: of all.
    percentile : float, optional
        Instead: this percentile of all, between neighbours linearly.
    """

    best: int = 3
    percentile: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule of ``max``, ``mean``, ``top3`` or ``percentile:75``.

        Raises
        ------
        ConfigError
            If it is none of these.
        """
        match = _RULE.fullmatch(text)
        if match is None or match[2] == "0" or float(match[3] or 0) > 100:
            fix = "use top3 (mean of the best three), max, mean or percentile:75"
            raise ConfigError("unknown score", value=text, fix=fix)
        if match[1]:
            return cls(best=1 if match[1] == "max" else 0)
        if match[2]:
            return cls(best=int(match[2]))
        return cls(percentile=float(match[3]))


def affinities(
    submissions_SD: FloatArray,
    publications_PD: FloatArray,
    written: Ragged,
    rule: Rule,
    weights: FloatArray | None = None,
) -> Iterator[tuple[int, FloatArray]]:
    """Yield the scores of one block of submissions after the other, shape ``(Q, R)``.

    Every similarity is a dot product: give unit vectors for cosines. Memory is bounded by the
    block, whatever reviewers wrote.

    Parameters
    ----------
    submissions_SD, publications_PD : array
        float32 vectors.
    written : Ragged
        The rows of each reviewer's publications.
    rule : Rule
        How similarities become a score.
    weights : array, optional
        For each entry of ``written``, what similarities above 0 are multiplied by.

    Yields
    ------
    start : int
        First submission of the block.
    scores_QR : array
        float32; NaN for a reviewer without publications.
    """
    queries = torch.from_numpy(np.ascontiguousarray(submissions_SD))
    candidates = torch.from_numpy(np.ascontiguousarray(publications_PD))
    similar = _Similarities(candidates, written, weights)
    for start in range(0, len(queries), BLOCK):
        block_QD = queries[start : start + BLOCK]
        if rule.percentile is None:
            scores_RQ = _means_of_best(similar, block_QD, rule.best)
        else:
            scores_RQ = _percentiles(similar, block_QD, rule.percentile)
        yield start, np.ascontiguousarray(scores_RQ.T)


class _Similarities:
    """Weighted similarities of listed publications of reviewers."""

    def __init__(self, candidates: Tensor, written: Ragged, weights: FloatArray | None) -> None:
        self._candidates, self.written = candidates, written
        self._weights = None if weights is None else torch.from_numpy(weights.astype(np.float32))

    def of(self, entries_E: IntArray, block_QD: Tensor) -> Tensor:
        """Return the similarities of entries of ``written``, shape ``(E, Q)``."""
        rows = torch.from_numpy(self.written.values[entries_E])
        scores_EQ = products(self._candidates[rows], block_QD)
        if self._weights is None:
            return scores_EQ
        weights_E1 = self._weights[torch.from_numpy(entries_E)][:, None]
        return torch.where(scores_EQ > 0, scores_EQ * weights_E1, scores_EQ)


def _means_of_best(similar: _Similarities, block_QD: Tensor, best: int) -> FloatArray:
    """Return the mean of each reviewer's ``best`` largest similarities, 0: of all.

    Reviewers with about as many publications are taken together: one product for all of theirs,
    then their first publications are compared, their second and so on, in a processor's cache.
    """
    lengths = similar.written.lengths
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    scores_RQ = np.full((len(lengths), len(block_QD)), np.nan, dtype=np.float32)
    for first in range(0, len(order), _TOGETHER):
        rows_R = order[first : first + _TOGETHER]
        scores_RQ[rows_R] = _mean_of_best(similar, rows_R, block_QD, best).numpy()
    return scores_RQ


def _mean_of_best(similar: _Similarities, rows_R: IntArray, block_QD: Tensor, best: int) -> Tensor:
    """Return the same of a few reviewers, those with most publications first."""
    lengths, starts = similar.written.lengths[rows_R], similar.written.offsets[:-1][rows_R]
    # How many have a first, a second, ... publication.
    reached = np.count_nonzero(lengths > np.arange(lengths[0])[:, np.newaxis], axis=1).tolist()
    shape = len(rows_R), len(block_QD)
    held = [torch.full(shape, -torch.inf) for _ in range(best)]
    total_RQ, spare_RQ = torch.zeros(shape), torch.empty(shape)
    for places in _within(reached, max(1, _HELD // shape[1])):
        entries = [starts[: reached[place]] + place for place in places]
        scores_EQ, first = similar.of(np.concatenate(entries), block_QD), 0
        for place in places:
            there = reached[place]
            new, free = scores_EQ[first : first + there], spare_RQ[:there]
            first += there
            if not best:
                total_RQ[:there] += new
            for top in (part[:there] for part in held):
                torch.minimum(top, new, out=free)
                torch.maximum(top, new, out=top)
                new, free = free, new
    for rank, top in enumerate(held):
        there = np.count_nonzero(lengths > rank)
        total_RQ[:there] += top[:there]
    counts_R = lengths if not best else np.minimum(lengths, best)
    return total_RQ / torch.from_numpy(counts_R[:, np.newaxis].astype(np.float32))


def _within(sizes: list[int], most: int) -> Iterator[range]:
    """Yield runs of places whose sizes add up to ``most`` at the most, or of one place."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield range(start, place)
            start, total = place, 0
        total += size
    yield range(start, len(sizes))


def _percentiles(similar: _Similarities, block_QD: Tensor, percentile: float) -> FloatArray:
    """Return a percentile of each reviewer's similarities, of equally many at once."""
    written = similar.written
    scores_RQ = np.full((len(written), len(block_QD)), np.nan, dtype=np.float32)
    for count in np.unique(written.lengths[written.lengths > 0]).tolist():
        reviewers = np.flatnonzero(written.lengths == count)
        size = max(1, _HELD // (len(block_QD) * count))
        for first in range(0, len(reviewers), size):
            rows_R = reviewers[first : first + size]
            entries_nR = written.offsets[:-1][rows_R] + np.arange(count)[:, np.newaxis]
            scores_EQ = similar.of(entries_nR.ravel(), block_QD).numpy()
            scores_nRQ = scores_EQ.reshape(count, len(rows_R), -1)
            scores_RQ[rows_R] = np.percentile(scores_nRQ, percentile, axis=0)
    return scores_RQ


def blocks_of(scores_SR: FloatArray, size: int = 1024) -> Iterator[tuple[int, FloatArray]]:
    """Yield the first row and a copy of each block of rows, with minus infinity for NaN."""
    for start in range(0, len(scores_SR), size):
        block = np.array(scores_SR[start : start + size])
        block[np.isnan(block)] = -np.inf
        yield start, block


def best_pairs(scores_SR: FloatArray, of_row: int, of_column: int) -> IntArray:
    """Return the best pairs of each row and of each column, as ``row * R + column``, ascending.

    Parameters
    ----------
    scores_SR : array
        May be memory-mapped; pairs with NaN are left out.
    of_row, of_column : int
        How many of each, at most.
    """
    count = scores_SR.shape[1]
    wide, long = min(count, of_row), min(len(scores_SR), of_column)
    pairs = []
    best_KR = np.full((long, count), -np.inf, dtype=np.float32)
    rows_KR = np.zeros((long, count), dtype=np.int64)
    for start, block in blocks_of(scores_SR):
        rows = np.arange(start, start + len(block))[:, np.newaxis]
        columns = np.argpartition(-block, wide - 1, axis=1)[:, :wide]
        there = np.isfinite(np.take_along_axis(block, columns, 1))
        pairs.append((rows * count + columns)[there])
        both = np.concatenate([best_KR, block])
        places = np.concatenate([rows_KR, np.broadcast_to(rows, block.shape)])
        top_KR = np.argpartition(-both, long - 1, axis=0)[:long]
        best_KR = np.take_along_axis(both, top_KR, 0)
        rows_KR = np.take_along_axis(places, top_KR, 0)
    columns = np.broadcast_to(np.arange(count), rows_KR.shape)
    pairs.append((rows_KR * count + columns)[np.isfinite(best_KR)])
    return np.unique(np.concatenate(pairs))


def recency(years: list[int | None], now: int, half_life: float) -> FloatArray:
    """Return a weight for each year: half of it for every ``half_life`` years before ``now``.

    A paper without a year has the weight of the mean age of the others.
    """
    ages = np.array([np.nan if year is None else max(0, now - year) for year in years], np.float64)
    known = ages[~np.isnan(ages)]
    ages[np.isnan(ages)] = known.mean() if len(known) else 0.0
    return (0.5 ** (ages / half_life)).astype(np.float32)
