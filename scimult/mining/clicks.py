"""Hard negatives of search: shown and not clicked, or judged and not relevant."""

from __future__ import annotations

from dataclasses import dataclass

from scimult.data.ragged import Ragged
from scimult.mining.pools import Groups


@dataclass(frozen=True)
class Shown:
    """Papers that were shown for the query (SciMult, section 3.4).

    Parameters
    ----------
    shown : Ragged
        For every text row the papers shown for it, sorted and unique.
    """

    shown: Ragged

    def candidates(self, groups: Groups) -> Ragged:
        """Return the papers shown for each query."""
        return self.shown.take(groups.queries_G)
