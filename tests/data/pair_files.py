"""Pair files with synthetic rows."""

from __future__ import annotations

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged


def pair_file(name: str, task: str, sizes: list[int], negatives: list[int]) -> PairFile:
    """Make groups with ``sizes`` positives and ``negatives`` hard negatives; all ids differ."""
    groups = len(sizes)
    positives = [range(1000 * g, 1000 * g + size) for g, size in enumerate(sizes)]
    hard = [range(1000 * g + 500, 1000 * g + 500 + n) for g, n in enumerate(negatives)]
    return PairFile(
        name,
        task,
        "train",
        np.arange(groups) + 1_000_000,
        Ragged.from_lists(positives),
        Ragged.from_lists(hard),
    )


SOURCES = [
    pair_file("labels", "classification", [3, 1, 4, 2], [2, 0, 5, 1]),
    pair_file("links", "link_prediction", [1] * 25, [1] * 25),
    pair_file("clicks", "search", [2, 2, 1], [3, 0, 0]),
]
