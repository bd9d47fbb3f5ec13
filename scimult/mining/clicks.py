"""Hard negatives of search: shown and not clicked, or judged and not relevant."""

from __future__ import annotations

from scimult.data.ragged import Ragged
from scimult.mining.sampling import Membership, sample_lists
from scimult.types import IntArray


def shown_not_positive(
    queries: IntArray, positives: Ragged, shown: Ragged, *, limit: int, seed: int
) -> Ragged:
    """Return the papers that were shown for a query and are not its positives.

    Parameters
    ----------
    queries : IntArray
        Query of each group, shape ``(G,)``.
    positives : Ragged
        For every query row its known positives, sorted and unique.
    shown : Ragged
        For every query row the papers shown, sorted and unique.
    limit : int
        Largest pool of a group; a larger one is sampled.
    seed : int
        Decides the sample.

    Returns
    -------
    Ragged
        ``G`` sorted lists; empty where nothing else was shown.
    """
    lists = shown.take(queries)
    groups, papers = lists.owners, lists.values
    hard = ~Membership(positives)(queries[groups], papers)
    pools = Ragged.from_pairs(groups[hard], papers[hard], len(queries))
    return sample_lists(pools, limit, seed)
