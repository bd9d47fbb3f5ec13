"""Hard negatives of link prediction from the citation graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scimult.data.ragged import Ragged
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.sampling import sample_lists


@dataclass(frozen=True)
class CitedByCited:
    """Papers that a positive cites (SPECTER, section 2.4; SciMult, section 3.4).

    Both papers ask that the query does not cite them: ``Ingredient.exclude_known``.

    Parameters
    ----------
    cites : Ragged
        For every paper the papers it cites, sorted and unique.
    """

    cites: Ragged

    def candidates(self, groups: Groups) -> Ragged:
        """Return the references of the positives; work is one look-up per reference."""
        references = self.cites.take(groups.positives.values)
        owners = groups.positives.owners[references.owners]
        return Ragged.from_pairs(owners, references.values, len(groups))


@dataclass(frozen=True)
class CoCited:
    """Papers that some paper cites together with a positive.

    Parameters
    ----------
    cites, cited_by : Ragged
        For every paper the papers it cites, and those that cite it, sorted and unique.
    max_citing : int
        Citing papers of a positive that are looked at, chosen by a seeded hash: a classic with
        a hundred thousand citations costs as much as a paper with this many.
    seed : int
        Decides which.
    """

    cites: Ragged
    cited_by: Ragged
    max_citing: int
    seed: int

    def candidates(self, groups: Groups) -> Ragged:
        """Return the references of papers that cite a positive; the positive is among them."""
        positives, place = np.unique(groups.positives.values, return_inverse=True)
        citing = sample_lists(
            self.cited_by.take(positives), self.max_citing, self.seed, owners=positives
        )
        references = self.cites.take(citing.values)
        found = Ragged.from_pairs(
            citing.owners[references.owners], references.values, len(positives)
        )
        of_positive = found.take(place)
        owners = groups.positives.owners[of_positive.owners]
        return Ragged.from_pairs(owners, of_positive.values, len(groups))
