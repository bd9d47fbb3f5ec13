"""Selection of suggested concepts: the best above a threshold, consistent with the hierarchy.

Shape legend: B papers, C concepts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scimult.errors import ConfigError
from scimult.tagging.calibration import Suggestions
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


def as_selected(
    suggestions: Suggestions,
    vocabulary: Vocabulary,
    *,
    k: int | None,
    exclude: Collection[int],
    hierarchy: Hierarchy,
) -> Suggestions:
    """Return what `select_tags` selects of held-out suggestions, at any threshold.

    Exclusions and ``specific`` take out the safest tags, so that the precision of all suggestions
    says little about the rest.

    Raises
    ------
    ConfigError
        If the tagger did not store the concepts.
    """
    if suggestions.concepts_P is None:
        problem = "an earlier version stored no precision with exclusions or narrowest concepts"
        raise ConfigError(problem, fix="train the tagger again, or leave precision out")
    concepts, right = suggestions.concepts_P.tolist(), suggestions.right_P.tolist()
    papers, changes, paper = suggestions.papers_P.tolist(), [], -1
    for entry in np.lexsort((suggestions.ranks_P, suggestions.papers_P)).tolist():
        if papers[entry] != paper:
            paper, before = papers[entry], (0, 0)
            tags: list[int] = []
            covered = set(exclude)
        row = concepts[entry]
        if row in covered or (k is not None and len(tags) > k):
            continue
        if hierarchy == "specific":
            above = vocabulary.ancestors(row)
            covered |= above
            tags = [other for other in tags if concepts[other] not in above]
        tags.append(entry)
        counts = len(tags[:k]), sum(right[other] for other in tags[:k])
        changes.append((entry, counts[0] - before[0], counts[1] - before[1]))
        before = counts
    entries_P, added_P, right_P = np.array(changes, dtype=np.int64).reshape(-1, 3).T
    return Suggestions(
        suggestions.probabilities_P[entries_P], right_P, suggestions.papers_P[entries_P],
        np.ones_like(entries_P), added_P=added_P,
    )  # fmt: skip
