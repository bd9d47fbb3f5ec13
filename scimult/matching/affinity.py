"""Affinity of each reviewer to each submission, from the similarities of their publications.

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
# Similarities in memory at once: a few megabytes, which fit a processor's cache.
_HELD = 1 << 21
# Reviewers processed together.
_GROUP = 64
_RULE = re.compile(r"(max|mean)|top([1-9]\d{0,8})|percentile:(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Rule:
    """How the similarities of a reviewer's publications become one score.

    It is the mean of the ``best`` largest, or of all if there are fewer; 0: of all. With a
    ``percentile``, it is that of all similarities, with linear interpolation.
    """

    best: int = 3
    percentile: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse ``max``, ``mean``, ``top3`` or ``percentile:75``.

        Raises
        ------
        ConfigError
            If the text is none of these.
        """
        match = _RULE.fullmatch(text)
        if match is None or float(match[3] or 0) > 100:
            fix = "use top3 (mean of the best three), max, mean or percentile:75"
            raise ConfigError("unknown scoring rule", value=text, fix=fix)
        if match[1]:
            return cls(best=1 if match[1] == "max" else 0)
        if match[2]:
            return cls(best=int(match[2]))
        return cls(percentile=float(match[3]))


def affinities(
    submissions_SD: FloatArray,
    publications_PD: FloatArray,
    publications_of: Ragged,
    rule: Rule,
    weights: FloatArray | None = None,
) -> Iterator[tuple[int, FloatArray]]:
    """Yield scores by blocks of submissions, shape ``(Q, R)``.

    Similarities are dot products: pass unit vectors for cosines. ``publications_of`` are the rows
    of each reviewer's publications, ``weights`` for each of its entries the factor of similarities
    above 0. Memory is bounded by the block, however many publications reviewers have. Each block
    comes after the number of its first submission; a reviewer without publications has NaN.
    """
    queries = torch.from_numpy(np.ascontiguousarray(submissions_SD))
    candidates = torch.from_numpy(np.ascontiguousarray(publications_PD))
    similar = _Similarities(candidates, publications_of, weights)
    for start in range(0, len(queries), BLOCK):
        block_QD = queries[start : start + BLOCK]
        if rule.percentile is None:
            scores_RQ = _means_of_best(similar, block_QD, rule.best)
        else:
            scores_RQ = _percentiles(similar, block_QD, rule.percentile)
        yield start, np.ascontiguousarray(scores_RQ.T)


class _Similarities:
    """Weighted similarities of reviewers' publications."""

    def __init__(
        self, candidates: Tensor, publications_of: Ragged, weights: FloatArray | None
    ) -> None:
        self._candidates, self.publications_of = candidates, publications_of
        self._weights = None if weights is None else torch.from_numpy(weights.astype(np.float32))

    def of(self, entries_E: IntArray, block_QD: Tensor) -> Tensor:
        """Return the similarities of entries of ``publications_of``, shape ``(E, Q)``."""
        rows = torch.from_numpy(self.publications_of.values[entries_E])
        scores_EQ = products(self._candidates[rows], block_QD)
        if self._weights is None:
            return scores_EQ
        weights_E1 = self._weights[torch.from_numpy(entries_E)][:, None]
        return torch.where(scores_EQ > 0, scores_EQ * weights_E1, scores_EQ)


def _means_of_best(similar: _Similarities, block_QD: Tensor, best: int) -> FloatArray:
    """Return the mean of each reviewer's ``best`` largest similarities (0: of all).

    Reviewers with similar numbers of publications are processed together: one product for all
    their publications, then their first publications are compared, then their second and so on,
    within a processor's cache.
    """
    lengths = similar.publications_of.lengths
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    scores_RQ = np.full((len(lengths), len(block_QD)), np.nan, dtype=np.float32)
    for first in range(0, len(order), _GROUP):
        rows_R = order[first : first + _GROUP]
        scores_RQ[rows_R] = _mean_of_best(similar, rows_R, block_QD, best).numpy()
    return scores_RQ


def _mean_of_best(similar: _Similarities, rows_R: IntArray, block_QD: Tensor, best: int) -> Tensor:
    """Return the same for a few reviewers, those with most publications first."""
    publications_of = similar.publications_of
    lengths, starts = publications_of.lengths[rows_R], publications_of.offsets[:-1][rows_R]
    best = min(best, int(lengths[0]))
    # How many reviewers have a first, a second, ... publication.
    reached = np.count_nonzero(lengths > np.arange(lengths[0])[:, np.newaxis], axis=1).tolist()
    shape = len(rows_R), len(block_QD)
    tops = [torch.full(shape, -torch.inf) for _ in range(best)]
    total_RQ, spare_RQ = torch.zeros(shape), torch.empty(shape)
    for ranks in _within(reached, max(1, _HELD // shape[1])):
        entries = [starts[: reached[rank]] + rank for rank in ranks]
        scores_EQ, first = similar.of(np.concatenate(entries), block_QD), 0
        for rank in ranks:
            count = reached[rank]
            new, free = scores_EQ[first : first + count], spare_RQ[:count]
            first += count
            if not best:
                total_RQ[:count] += new
            for top in (part[:count] for part in tops):
                torch.minimum(top, new, out=free)
                torch.maximum(top, new, out=top)
                new, free = free, new
    for rank, top in enumerate(tops):
        count = np.count_nonzero(lengths > rank)
        total_RQ[:count] += top[:count]
    counts_R = lengths if not best else np.minimum(lengths, best)
    return total_RQ / torch.from_numpy(counts_R[:, np.newaxis].astype(np.float32))


def _within(sizes: list[int], most: int) -> Iterator[range]:
    """Yield ranges of indices whose sizes add up to at most ``most``, or of one index."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield range(start, index)
            start, total = index, 0
        total += size
    yield range(start, len(sizes))


def _percentiles(similar: _Similarities, block_QD: Tensor, percentile: float) -> FloatArray:
    """Return a percentile of each reviewer's similarities, grouped by number of publications."""
    publications_of = similar.publications_of
    lengths = publications_of.lengths
    scores_RQ = np.full((len(lengths), len(block_QD)), np.nan, dtype=np.float32)
    for count in np.unique(lengths[lengths > 0]).tolist():
        reviewers = np.flatnonzero(lengths == count)
        size = max(1, _HELD // (len(block_QD) * count))
        for first in range(0, len(reviewers), size):
            rows_R = reviewers[first : first + size]
            entries_nR = publications_of.offsets[:-1][rows_R] + np.arange(count)[:, np.newaxis]
            scores_EQ = similar.of(entries_nR.ravel(), block_QD).numpy()
            scores_nRQ = scores_EQ.reshape(count, len(rows_R), -1)
            scores_RQ[rows_R] = np.percentile(scores_nRQ, percentile, axis=0)
    return scores_RQ


def blocks_of(scores_SR: FloatArray, size: int = 1024) -> Iterator[tuple[int, FloatArray]]:
    """Yield the first row and a copy of each block of rows, with NaN replaced by -inf."""
    for start in range(0, len(scores_SR), size):
        block = np.array(scores_SR[start : start + size])
        block[np.isnan(block)] = -np.inf
        yield start, block


def best_pairs(scores_SR: FloatArray, of_row: int, of_column: int) -> IntArray:
    """Return the best pairs of each row and each column as ``row * R + column``, ascending.

    ``of_row`` and ``of_column`` are their maximum numbers; pairs with NaN are left out.
    """
    count = scores_SR.shape[1]
    wide, long = min(count, of_row), min(len(scores_SR), of_column)
    pairs = []
    best_KR = np.full((long, count), -np.inf, dtype=np.float32)
    rows_KR = np.zeros((long, count), dtype=np.int64)
    for start, block in blocks_of(scores_SR):
        rows = np.arange(start, start + len(block))[:, np.newaxis]
        columns = np.argpartition(-block, wide - 1, axis=1)[:, :wide]
        finite = np.isfinite(np.take_along_axis(block, columns, 1))
        pairs.append((rows * count + columns)[finite])
        both = np.concatenate([best_KR, block])
        row_numbers = np.concatenate([rows_KR, np.broadcast_to(rows, block.shape)])
        top_KR = np.argpartition(-both, long - 1, axis=0)[:long]
        best_KR = np.take_along_axis(both, top_KR, 0)
        rows_KR = np.take_along_axis(row_numbers, top_KR, 0)
    columns = np.broadcast_to(np.arange(count), rows_KR.shape)
    pairs.append((rows_KR * count + columns)[np.isfinite(best_KR)])
    return np.unique(np.concatenate(pairs))


def recency(years: list[int | None], now: int, half_life: float) -> FloatArray:
    """Return a weight per year, halved for every ``half_life`` years before ``now``.

    A paper without a year gets the mean age of the others.
    """
    ages = np.array([np.nan if year is None else max(0, now - year) for year in years], np.float64)
    known = ages[~np.isnan(ages)]
    ages[np.isnan(ages)] = known.mean() if len(known) else 0.0
    return (0.5 ** (ages / half_life)).astype(np.float32)
