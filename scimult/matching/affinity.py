"""How well each reviewer fits each submission, from the similarities of what they wrote.

Shape legend: Q submissions of a block, R reviewers, P publications, n publications of each of
the reviewers of a block, D width.
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

BLOCK = 256
# Similarities that are held at once.
_HELD = 1 << 24
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
        found = _RULE.fullmatch(text)
        if found is None or found[2] == "0" or float(found[3] or 0) > 100:
            fix = "use top3 (mean of the best three), max, mean or percentile:75"
            raise ConfigError("unknown score", value=text, fix=fix)
        if found[1]:
            return cls(best=1 if found[1] == "max" else 0)
        if found[2]:
            return cls(best=int(found[2]))
        return cls(percentile=float(found[3]))

    def reduce(self, similarities_QnR: Tensor) -> Tensor:
        """Return the scores, shape ``(Q, R)``."""
        count = similarities_QnR.shape[1]
        if self.percentile is not None:
            found = np.percentile(similarities_QnR.numpy(), self.percentile, axis=1)
            return torch.from_numpy(found.astype(np.float32))
        if self.best == 1:
            return similarities_QnR.amax(1)
        if not 0 < self.best < count:
            return similarities_QnR.mean(1)
        best = list(similarities_QnR[:, : self.best].sort(1, descending=True).values.unbind(1))
        for place in range(self.best, count):
            new = similarities_QnR[:, place]
            for rank, held in enumerate(best):
                best[rank], new = torch.maximum(held, new), torch.minimum(held, new)
        return torch.stack(best).mean(0)


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
    groups = list(_groups(written))
    for start in range(0, len(queries), BLOCK):
        block_QD = queries[start : start + BLOCK]
        scores_QR = np.full((len(block_QD), len(written)), np.nan, dtype=np.float32)
        for reviewers_R, entries_nR in groups:
            rows = torch.from_numpy(written.values[entries_nR].ravel())
            found = products(block_QD, candidates[rows]).view(len(block_QD), *entries_nR.shape)
            if weights is not None:
                weights_nR = torch.from_numpy(weights[entries_nR].astype(np.float32))
                found = torch.where(found > 0, found * weights_nR, found)
            scores_QR[:, reviewers_R] = rule.reduce(found).numpy()
        yield start, scores_QR


def _groups(written: Ragged) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield reviewers with equally many publications, and these as entries of shape ``(n, R)``."""
    for count in np.unique(written.lengths):
        if not count:
            continue
        reviewers = np.flatnonzero(written.lengths == count)
        size = max(1, _HELD // (BLOCK * int(count)))
        for first in range(0, len(reviewers), size):
            chosen_R = reviewers[first : first + size]
            entries_nR = written.offsets[:-1][chosen_R] + np.arange(count)[:, np.newaxis]
            yield chosen_R, entries_nR


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
    found = []
    best_KR = np.full((long, count), -np.inf, dtype=np.float32)
    rows_KR = np.zeros((long, count), dtype=np.int64)
    for start, block in blocks_of(scores_SR):
        rows = np.arange(start, start + len(block))[:, np.newaxis]
        columns = np.argpartition(-block, wide - 1, axis=1)[:, :wide]
        there = np.isfinite(np.take_along_axis(block, columns, 1))
        found.append((rows * count + columns)[there])
        both = np.concatenate([best_KR, block])
        places = np.concatenate([rows_KR, np.broadcast_to(rows, block.shape)])
        kept = np.argpartition(-both, long - 1, axis=0)[:long]
        best_KR = np.take_along_axis(both, kept, 0)
        rows_KR = np.take_along_axis(places, kept, 0)
    columns = np.broadcast_to(np.arange(count), rows_KR.shape)
    found.append((rows_KR * count + columns)[np.isfinite(best_KR)])
    return np.unique(np.concatenate(found))


def recency(years: list[int | None], now: int, half_life: float) -> FloatArray:
    """Return a weight for each year: half of it for every ``half_life`` years before ``now``.

    A paper without a year has the weight of the mean age of the others.
    """
    ages = np.array([np.nan if year is None else max(0, now - year) for year in years], np.float64)
    known = ages[~np.isnan(ages)]
    ages[np.isnan(ages)] = known.mean() if len(known) else 0.0
    return (0.5 ** (ages / half_life)).astype(np.float32)
