"""Draw each pair's hard negative from its group's pool.

Shape legend: G groups, P pairs, C candidates of all pools, concatenated, R rules, S distinct sets
of rules that found a group's candidates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scimult.data.pairs import PairFile
from scimult.types import IntArray

NO_NEGATIVE = -1
# Fitting of rule weights: most rounds, and tolerance. Towards an unattainable share a weight grows
# for ever: at most twofold a round relative to another, 2^900 in all, which float64 can hold.
_MAX_ROUNDS, _TOLERANCE = 900, 1e-6
# Bounds the memory of `drawn_by_rule`.
_GROUPS_PER_PART = 1 << 18


class NegativeDraws:
    """Draws a hard negative for each pair of a file, uniformly from the pool or by rules.

    If the mining rules have shares, a draw picks a rule, then one of its candidates uniformly.
    Shares apply to all draws of the file: since many groups have no candidate from some rule,
    other groups draw from it more often, as far as possible.
    """

    def __init__(self, pairs: PairFile) -> None:
        self._negatives = pairs.negatives
        self._ends_C = np.cumsum(draw_weights(pairs)) if pairs.shares else None

    def draw(self, groups_P: IntArray, rng: np.random.Generator) -> IntArray:
        """Return a text row for each pair of these groups; ``NO_NEGATIVE`` for empty pools."""
        counts_P = self._negatives.lengths[groups_P]
        first_P = self._negatives.offsets[groups_P]
        chances_P = rng.random(len(groups_P))
        rows_P = np.full(len(groups_P), NO_NEGATIVE, dtype=np.int64)
        has_any = counts_P > 0
        first, last = first_P[has_any], (first_P + counts_P)[has_any] - 1
        if self._ends_C is None:
            indices = first + (chances_P * counts_P).astype(np.int64)[has_any]
        else:
            starts = np.where(first > 0, self._ends_C[first - 1], 0.0)
            points = starts + chances_P[has_any] * (self._ends_C[last] - starts)
            # The cumulative sum has rounding errors: stay within the pool.
            indices = np.searchsorted(self._ends_C, points, side="right").clip(first, last)
        rows_P[has_any] = self._negatives.values[indices]
        return rows_P


def draw_weights(pairs: PairFile) -> NDArray[np.float64]:
    """Return each candidate's probability of being drawn for a pair of its group, shape ``(C,)``.

    A candidate found by several rules gets the sum of their contributions.
    """
    return _chances(pairs, _rule_weights(pairs) if pairs.shares else None)


def _chances(pairs: PairFile, weights_R: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return each candidate's probability, given the rules' weights; uniform without any."""
    owners_C = pairs.negatives.owners
    if weights_R is None:
        uniform_C: NDArray[np.float64] = 1.0 / pairs.negatives.lengths[owners_C]
        return uniform_C
    weights_C = np.zeros(len(owners_C), dtype=np.float64)
    totals_G = np.zeros(len(pairs))
    for rule, weight in enumerate(weights_R):
        mask_C = found_by_rule(pairs, rule)
        counts_G = np.bincount(owners_C[mask_C], minlength=len(pairs))
        weights_C[mask_C] += weight / counts_G[owners_C[mask_C]]
        totals_G += weight * (counts_G > 0)
    weights_C /= totals_G[owners_C]
    return weights_C


def _rule_weights(pairs: PairFile) -> NDArray[np.float64]:
    """Return rule weights whose draws reproduce the rules' shares.

    Fitted by iterative proportional fitting (Deming and Stephan, 1940) over the sets of rules
    that found a group's candidates. Rules with unattainable shares are drawn wherever they found
    something, and the others keep their shares relative to each other.
    """
    assert pairs.found_by is not None
    filled = np.flatnonzero(pairs.negatives.lengths)
    if not len(filled):
        return np.array(pairs.shares)
    sets_G = np.bitwise_or.reduceat(pairs.found_by, pairs.negatives.offsets[filled])
    sets_S, set_G = np.unique(sets_G, return_inverse=True)
    pairs_S = np.bincount(set_G, weights=pairs.positives.lengths[filled])
    has_SR = (sets_S[:, None].astype(np.int64) >> np.arange(len(pairs.shares))) & 1
    target_R = np.array(pairs.shares) * has_SR.any(axis=0)
    target_R /= target_R.sum()
    weights_R: NDArray[np.float64] = target_R.copy()
    for _ in range(_MAX_ROUNDS):
        chances_SR = has_SR * weights_R / (has_SR @ weights_R)[:, None]
        shares_R = pairs_S @ chances_SR / pairs_S.sum()
        factors_R = np.divide(target_R, shares_R, out=np.ones_like(target_R), where=shares_R > 0)
        if np.abs(factors_R - 1).max() < _TOLERANCE:
            break
        weights_R *= factors_R ** min(1.0, 1 / np.log2(factors_R.max() / factors_R.min()))
        # A power of two rounds nothing.
        weights_R = np.ldexp(weights_R, -np.frexp(weights_R.max())[1])
    return weights_R


def drawn_by_rule(pairs: PairFile) -> dict[str, float]:
    """Return each rule's expected share of the negatives that training draws.

    Over all pairs with a non-empty pool. A negative found by several rules counts for each.
    """
    weights_R = _rule_weights(pairs) if pairs.shares else None
    draws_R = np.zeros(len(pairs.rules))
    total = 0
    for start in range(0, len(pairs), _GROUPS_PER_PART):
        part = _part(pairs, start, min(start + _GROUPS_PER_PART, len(pairs)))
        pairs_G, negatives = part.positives.lengths, part.negatives
        draws_C = _chances(part, weights_R) * pairs_G[negatives.owners]
        draws_R += [draws_C[found_by_rule(part, rule)].sum() for rule in range(len(draws_R))]
        total += int(pairs_G[negatives.lengths > 0].sum())
    return {
        rule: draws / max(total, 1)
        for rule, draws in zip(pairs.rules, draws_R.tolist(), strict=True)
    }


def _part(pairs: PairFile, start: int, stop: int) -> PairFile:
    """Return groups ``start`` to ``stop`` of a file."""
    assert pairs.found_by is not None
    first, last = pairs.negatives.offsets[[start, stop]]
    return replace(
        pairs,
        queries=pairs.queries[start:stop],
        positives=pairs.positives.part(start, stop),
        negatives=pairs.negatives.part(start, stop),
        unsampled=pairs.unsampled.part(start, stop),
        found_by=pairs.found_by[first:last],
    )


def found_by_rule(pairs: PairFile, rule: int) -> NDArray[np.bool_]:
    """Return which candidates rule number ``rule`` found, shape ``(C,)``."""
    assert pairs.found_by is not None
    bit = pairs.found_by.dtype.type(1 << rule)
    mask_C: NDArray[np.bool_] = (pairs.found_by & bit) != 0
    return mask_C
