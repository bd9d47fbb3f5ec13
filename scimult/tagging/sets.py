"""Selection of suggested concepts: the best above a threshold, consistent with the hierarchy.

Shape legend: B papers, C concepts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scimult.tagging.vocabulary import Vocabulary

Hierarchy = Literal["flat", "closed", "specific"]


def raised(probabilities_BC: NDArray[Any], vocabulary: Vocabulary) -> NDArray[Any]:
    """Raise each concept's probability to the largest of its narrower concepts.

    A paper with a concept has all broader ones too, so theirs cannot be lower.
    """
    raised_BC: NDArray[Any] = probabilities_BC.copy()
    for row in vocabulary.order_C[::-1].tolist():
        for parent in vocabulary.parents[row].tolist():
            np.maximum(raised_BC[:, parent], raised_BC[:, row], out=raised_BC[:, parent])
    return raised_BC


def best_first(probabilities_C: NDArray[Any], vocabulary: Vocabulary, most: int) -> list[int]:
    """Return at least ``most`` rows, most probable first; broader concepts win ties."""
    rows = np.arange(len(probabilities_C))
    if most < len(rows):
        least = np.partition(probabilities_C, -most)[-most]
        rows = np.flatnonzero(probabilities_C >= least)
    order = np.lexsort((vocabulary.position_C[rows], -probabilities_C[rows]))
    best: list[int] = rows[order].tolist()
    return best


def select_tags(
    ranked: list[int],
    probabilities_C: NDArray[Any],
    vocabulary: Vocabulary,
    *,
    k: int | None,
    threshold: float | None,
    exclude: Collection[int],
    hierarchy: Hierarchy,
) -> list[int]:
    """Select suggestions from ranked rows, best first, in their order.

    In a closed hierarchy broader concepts are ranked before narrower ones; ``specific`` leaves out
    concepts above another suggestion, and later ones move up.
    """
    tags: list[int] = []
    for row in ranked:
        if threshold is not None and probabilities_C[row] < threshold:
            break
        if row in exclude:
            continue
        if hierarchy == "specific":
            if any(row in vocabulary.ancestors(other) for other in tags):
                continue
            above = vocabulary.ancestors(row)
            tags = [other for other in tags if other not in above]
        tags.append(row)
        if k is not None and len(tags) >= k and hierarchy != "specific":
            break
        if k is not None and len(tags) > k:
            return tags[:k]
    return tags
