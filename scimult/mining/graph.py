"""Hard negatives of link prediction from the citation graph (SciMult, section 3.4)."""

from __future__ import annotations

import numpy as np

from scimult.data.ragged import Ragged
from scimult.mining.sampling import Membership, concatenate, sample_lists
from scimult.types import IntArray

GROUPS_PER_CHUNK = 1 << 15


def cited_by_cited(
    queries: IntArray, positives: Ragged, cites: Ragged, *, limit: int, seed: int
) -> Ragged:
    """Return papers that a positive cites, that the query does not cite and is not.

    Work is one look-up per reference of each positive; memory is bounded by chunks.

    Parameters
    ----------
    queries : IntArray
        Query paper of each group, shape ``(G,)``.
    positives : Ragged
        Cited papers of each group.
    cites : Ragged
        For every paper the papers it cites, sorted and unique.
    limit : int
        Largest pool of a group; a larger one is sampled.
    seed : int
        Decides the sample.

    Returns
    -------
    Ragged
        ``G`` sorted lists; empty where there is no such paper.
    """
    is_cited = Membership(cites)
    parts = []
    for start in range(0, len(queries), GROUPS_PER_CHUNK):
        rows = np.arange(start, min(start + GROUPS_PER_CHUNK, len(queries)), dtype=np.int64)
        chunk = positives.take(rows)
        references = cites.take(chunk.values)
        groups, candidates = chunk.owners[references.owners], references.values
        asking = queries[rows][groups]
        hard = (candidates != asking) & ~is_cited(asking, candidates)
        pools = Ragged.from_pairs(groups[hard], candidates[hard], len(rows))
        parts.append(sample_lists(pools, limit, seed, owners=rows))
    return concatenate(parts)
