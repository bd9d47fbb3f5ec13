"""More pairs of papers: neighbours in the citation embedding (SciNCL, Ostendorff et al., 2022)."""

from __future__ import annotations

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.ranked import RankWindow
from scimult.progress import progress
from scimult.types import FloatArray

SUFFIX = "-neighbours"
GROUPS_PER_CHUNK = 1 << 12


def neighbour_pairs(citations: PairFile, window: RankWindow[FloatArray]) -> PairFile:
    """Return one group per citing paper whose positives are a window of its neighbours.

    Parameters
    ----------
    citations : PairFile
        Names the queries; its positives play no part, and may be among the neighbours.
    window : RankWindow
        Over the citation embedding.

    Returns
    -------
    PairFile
        Source ``<source>-neighbours``, same task and split, no negatives yet. Queries without a
        neighbour in the window are left out.
    """
    queries = np.unique(citations.queries)
    parts = []
    for start in progress(range(0, len(queries), GROUPS_PER_CHUNK), "neighbours", unit="chunk"):
        asked = queries[start : start + GROUPS_PER_CHUNK]
        nothing = Ragged.empty(len(asked))
        parts.append(window.candidates(Groups(asked, nothing)))
    positives = Ragged.concatenate(parts)
    filled = np.flatnonzero(positives.lengths)
    return PairFile(
        citations.source + SUFFIX,
        citations.task,
        citations.split,
        queries[filled],
        positives.take(filled),
        Ragged.empty(len(filled)),
        namespace=citations.namespace,
        part="neighbours",
    )
