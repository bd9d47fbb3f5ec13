"""Which concepts are suggested together: the best, above a threshold, in keeping with a hierarchy.

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
    """Return probabilities such that no concept has less than one below it.

    What has a concept has all broader ones, so their probabilities cannot be lower; they are
    raised to the largest below.
    """
    raised_BC: NDArray[Any] = probabilities_BC.copy()
    for row in vocabulary.order_C[::-1].tolist():
        for parent in vocabulary.parents[row].tolist():
            np.maximum(raised_BC[:, parent], raised_BC[:, row], out=raised_BC[:, parent])
    return raised_BC


def best_first(probabilities_C: NDArray[Any], vocabulary: Vocabulary, most: int) -> list[int]:
    """Return ``most`` rows or more by falling probability; of equal ones broader ones first."""
    rows = np.arange(len(probabilities_C))
    if most < len(rows):
        least = np.partition(probabilities_C, -most)[-most]
        rows = np.flatnonzero(probabilities_C >= least)
    best: list[int] = rows[np.lexsort((vocabulary.place_C[rows], -probabilities_C[rows]))].tolist()
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
    """Return what is suggested of ranked concepts, in their order.

    Parameters
    ----------
    ranked : list of int
        Rows, best first; of a closed hierarchy broader ones stand before those below.
    probabilities_C : array
        Of all concepts.
    vocabulary : Vocabulary
        The hierarchy.
    k : int or None
        Most concepts.
    threshold : float or None
        Least probability.
    exclude : collection of int
        Rows that are never suggested.
    hierarchy : {"flat", "closed", "specific"}
        ``specific`` leaves out what is above another one that is suggested, and what comes
        after takes its place.
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
