"""Hard negatives that came with the data: shown and not clicked, judged, or part of a triple."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scimult.data.ragged import Ragged
from scimult.preparation.mining.pools import Groups
from scimult.types import IntArray


@dataclass(frozen=True)
class Shown:
    """Papers that were shown for the query (SciMult, section 3.4), or given for the pair.

    Parameters
    ----------
    shown : Ragged
        For every text row the papers shown for it, sorted and unique.
    triples : IntArray
        Query, positive and negative, shape ``(T, 3)``, sorted: such a negative is a candidate of
        groups with that query and positive alone.
    """

    shown: Ragged
    triples: IntArray = field(default_factory=lambda: np.empty((0, 3), np.int64))

    def candidates(self, groups: Groups) -> Ragged:
        """Return the papers shown for each query, and those given for its pairs."""
        shown = self.shown.take(groups.queries_G)
        if not len(self.triples):
            return shown
        owners, negatives = self._of_pairs(groups)
        return Ragged.from_pairs(
            np.concatenate([shown.owners, owners]),
            np.concatenate([shown.values, negatives]),
            len(groups),
        )

    def _of_pairs(self, groups: Groups) -> tuple[IntArray, IntArray]:
        """Return negatives of the triples that begin with a pair of a group, and that group."""
        owners = groups.positives.owners
        span = 1 + max(int(self.triples.max()), int(groups.positives.values.max(initial=0)))
        keys = self.triples[:, 0] * span + self.triples[:, 1]
        wanted = groups.queries_G[owners] * span + groups.positives.values
        first, last = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        counts = last - first
        shift = np.repeat(first - (np.cumsum(counts) - counts), counts)
        places = np.arange(counts.sum()) + shift
        return np.repeat(owners, counts), self.triples[places, 2]
