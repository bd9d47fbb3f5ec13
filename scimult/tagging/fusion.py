"""Fusion of all sources into log odds by logistic regression.

Concepts with tagged papers and those without have their own weights: for the latter, only names
and embeddings are known. Their weights are fitted to concepts hidden from the learned sources.

Shape legend: S sources, B papers, C concepts, P pairs of paper and concept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.tagging.signals import SOURCES, ZERO_SHOT
from scimult.tagging.words import log_odds_of_all
from scimult.types import BoolArray, FloatArray, IntArray

_HIDDEN = 5
"""One in this many concepts with papers represents those without."""
_LISTED, _SAMPLED = 30, 50
_INVERSE_PENALTY = 1.0


@dataclass(frozen=True)
class Weights:
    """Log odds are ``bias + Σ weight · source``.

    Attributes
    ----------
    bias : float
        Log odds where all sources are 0.
    weights : dict
        Weight by source; 0 for others.
    """

    bias: float
    weights: dict[str, float]

    def of(self, sources: tuple[str, ...]) -> FloatArray:
        """Return the weights of sources, in their order."""
        weights_S: FloatArray = np.array(
            [self.weights.get(name, 0.0) for name in sources], np.float32
        )
        return weights_S


@dataclass(frozen=True)
class Fusion:
    """Weights for concepts with tagged papers, and for those without."""

    seen: Weights
    unseen: Weights

    def logits(self, signals_SBC: FloatArray, seen_C: BoolArray) -> FloatArray:
        """Return log odds, shape ``(B, C)``."""
        sources = SOURCES[: len(signals_SBC)]
        pairs = zip(self.seen.of(sources), self.unseen.of(sources), strict=True)
        bias_C = np.where(seen_C, self.seen.bias, self.unseen.bias).astype(np.float32)
        logits_BC: FloatArray = np.broadcast_to(bias_C, signals_SBC.shape[1:]).copy()
        for signal_BC, (seen, unseen) in zip(signals_SBC, pairs, strict=True):
            logits_BC += np.where(seen_C, seen, unseen) * signal_BC
        return logits_BC


# Between the weights fitted to two data sets (docs/tagging.md), for use without tagged papers.
ZERO_SHOT_WEIGHTS = Weights(-8.0, {"label": 1.0, "title": 1.0, "abstract": 2.0})
ZERO_SHOT_FUSION = Fusion(ZERO_SHOT_WEIGHTS, ZERO_SHOT_WEIGHTS)


class FusionSample:
    """Pairs of papers and concepts to fit weights to; papers come in blocks.

    Wrong pairs are those that the label's similarity or the linear model ranks among a paper's top
    30, and 50 per paper sampled from the others, weighted to represent all of them. ``seen_C``
    tells which concepts have tagged papers.
    """

    def __init__(self, seen_C: BoolArray, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen_C = seen_C
        hidden = self._rng.permutation(np.flatnonzero(seen_C))[: int(seen_C.sum()) // _HIDDEN]
        self._unseen_C = ~seen_C
        self._unseen_C[hidden] = True
        self._parts: list[tuple[FloatArray, BoolArray, IntArray, NDArray[np.float64]]] = []

    def add(self, signals_SBC: FloatArray, right_BC: BoolArray) -> None:
        """Add papers and their correct concepts."""
        certain_BC = right_BC.copy()
        listed = min(_LISTED, right_BC.shape[1])
        for signal_BC in signals_SBC[[0, -2]]:
            best = np.argpartition(-signal_BC, listed - 1, axis=1)[:, :listed]
            np.put_along_axis(certain_BC, best, values=True, axis=1)
        columns = self._rng.integers(0, right_BC.shape[1], (len(right_BC), _SAMPLED))
        sampled_BC = np.zeros_like(certain_BC)
        np.put_along_axis(sampled_BC, columns, values=True, axis=1)
        sampled_BC &= ~certain_BC
        others_B = right_BC.shape[1] - certain_BC.sum(axis=1)
        weight_B = others_B / np.maximum(sampled_BC.sum(axis=1), 1)
        papers, concepts = np.nonzero(certain_BC | sampled_BC)
        weight_P = np.where(sampled_BC[papers, concepts], weight_B[papers], 1.0)
        signals_PS = signals_SBC[:, papers, concepts].T
        self._parts.append((signals_PS, right_BC[papers, concepts], concepts, weight_P))

    def fit(self) -> Fusion:
        """Return the weights of seen and unseen concepts.

        A group without right pairs, or without wrong ones, gets the weights of taggers without
        tagged papers; in the latter, high log odds.
        """
        signals_PS, right_P, concepts_P, weight_P = (
            np.concatenate(x) for x in zip(*self._parts, strict=True)
        )
        weights = []
        for group_C, sources in ((self._seen_C, SOURCES), (self._unseen_C, ZERO_SHOT)):
            rows = group_C[concepts_P]
            pairs = signals_PS[rows, : len(sources)], right_P[rows], weight_P[rows]
            weights.append(fit_weights(*pairs, sources))
        return Fusion(*weights)


def fit_weights(
    signals_PS: FloatArray, right_P: BoolArray, weight_P: NDArray[np.float64], sources: Any
) -> Weights:
    """Fit a logistic regression to weighted pairs, with little regularisation."""
    if not right_P.any():
        return ZERO_SHOT_WEIGHTS
    if right_P.all():
        return Weights(log_odds_of_all(len(right_P)), ZERO_SHOT_WEIGHTS.weights)
    from sklearn.linear_model import LogisticRegression

    mean_S, spread_S = signals_PS.mean(axis=0), signals_PS.std(axis=0)
    # Rounding gives a source that never varies a spread, and then a weight of thousands.
    spread_S = np.where(np.ptp(signals_PS, axis=0) > 0, spread_S, 1)
    model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=300)
    model.fit((signals_PS - mean_S) / spread_S, right_P, sample_weight=weight_P)
    weights_S = model.coef_[0] / spread_S
    bias = float(model.intercept_[0] - weights_S @ mean_S)
    return Weights(bias, dict(zip(sources, weights_S.tolist(), strict=True)))
