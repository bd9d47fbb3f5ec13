"""Selection of suggested concepts: the best above a threshold, consistent with the hierarchy.

Shape legend: B papers, C concepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scimult.errors import ConfigError
from scimult.tagging.calibration import Calibration, Numbers, Suggestions
from scimult.tagging.vocabulary import Vocabulary
from scimult.types import BoolArray

Hierarchy = Literal["flat", "closed", "specific"]


def check_limits(k: int | None, threshold: float | None, precision: float | None) -> None:
    """Check the limits of a list of tags, which needs no tagger.

    Raises
    ------
    ConfigError
        If one is out of its range, or threshold and precision are both given.
    """
    if k is not None and k < 1:
        raise ConfigError("k is below 1", value=k, fix="request at least one tag")
    if threshold is not None and not 0 <= threshold <= 1:
        fix = "write a score, such as 0.5"
        raise ConfigError("threshold is not between 0 and 1", value=threshold, fix=fix)
    if precision is None:
        return
    if threshold is not None:
        fix = "leave one of them out"
        raise ConfigError("threshold and precision are mutually exclusive", fix=fix)
    if not 0 < precision < 1:
        fix = "write a share, such as 0.8"
        raise ConfigError("precision is not between 0 and 1", value=precision, fix=fix)


def raised(probabilities_BC: NDArray[Any], vocabulary: Vocabulary) -> NDArray[Any]:
    """Raise each concept's probability to the largest of its narrower concepts.

    A paper with a concept has all broader ones too, so theirs cannot be lower.
    """
    raised_BC: NDArray[Any] = probabilities_BC.copy()
    for row in vocabulary.order_C[::-1].tolist():
        for parent in vocabulary.parents[row].tolist():
            np.maximum(raised_BC[:, parent], raised_BC[:, row], out=raised_BC[:, parent])
    return raised_BC


def calibrated(
    logits_BC: NDArray[Any],
    seen_C: BoolArray,
    calibration: Calibration,
    vocabulary: Vocabulary,
    hierarchy: Hierarchy,
) -> Numbers:
    """Return probabilities of concepts from their log odds, consistent with the hierarchy."""
    if hierarchy == "flat":
        return calibration.probabilities(logits_BC, seen_C)
    # Again after the two curves, which may have swapped seen and unseen concepts.
    return raised(calibration.probabilities(raised(logits_BC, vocabulary), seen_C), vocabulary)


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
    concepts above another suggestion, and later ones move up. Without a threshold it keeps a
    broader concept rather than one less than half as probable: almost every concept has some.
    """
    tags: list[int] = []
    rivals_C = probabilities_C if threshold is None else None
    growing = _growing(
        ranked, vocabulary, k=k, exclude=exclude, hierarchy=hierarchy, probabilities_C=rivals_C
    )
    for row, tags_then in growing:
        if threshold is not None and probabilities_C[row] < threshold:
            break
        tags = tags_then
    return tags


def _growing(
    ranked: Iterable[int],
    vocabulary: Vocabulary,
    *,
    k: int | None,
    exclude: Collection[int],
    hierarchy: Hierarchy,
    probabilities_C: NDArray[Any] | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """Yield each ranked row that is no longer left out, and the suggestions down to it.

    Given probabilities, ``specific`` keeps those more than twice as probable as narrower ones.
    """
    tags: list[int] = []
    left_out = set(exclude)
    for row in ranked:
        if row in left_out:
            continue
        if hierarchy == "specific":
            above = vocabulary.ancestors(row)
            if probabilities_C is not None and any(
                other in above and probabilities_C[row] < probabilities_C[other] / 2
                for other in tags
            ):
                continue
            left_out |= above
            tags = [other for other in tags if other not in above]
        tags.append(row)
        yield row, tags[:k]
        # A narrower concept may still take the place of a broader one.
        if k is not None and len(tags) >= k + (hierarchy == "specific"):
            return


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
    """
    assert suggestions.concepts_P is not None, "taggers without them guarantee no precision"
    order = np.lexsort((suggestions.ranks_P, suggestions.papers_P))
    starts = np.flatnonzero(np.diff(suggestions.papers_P[order])) + 1
    changes = []
    for entries in np.split(order, starts):
        concepts = suggestions.concepts_P[entries].tolist()
        right = dict(zip(concepts, suggestions.right_P[entries].tolist(), strict=True))
        entry_of = dict(zip(concepts, entries.tolist(), strict=True))
        before = 0, 0
        for row, tags in _growing(concepts, vocabulary, k=k, exclude=exclude, hierarchy=hierarchy):
            counts = len(tags), sum(right[tag] for tag in tags)
            changes.append((entry_of[row], counts[0] - before[0], counts[1] - before[1]))
            before = counts
    entries_P, added_P, right_P = np.array(changes, dtype=np.int64).reshape(-1, 3).T
    ranks_P = np.ones_like(entries_P)
    works_P = None if suggestions.works_P is None else suggestions.works_P[entries_P]
    of_entries = suggestions.probabilities_P[entries_P], right_P, suggestions.papers_P[entries_P]
    return Suggestions(*of_entries, ranks_P, added_P=added_P, works_P=works_P)
