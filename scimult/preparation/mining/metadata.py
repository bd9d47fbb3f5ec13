"""Hard negatives of classification from metadata (SciMult, section 3.4).

A label of a paper close to the query paper: cited by it, by a common author, of the same
venue. That it is no label of the query paper itself is ``Ingredient.exclude_known``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scimult.data.ragged import Ragged
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.sampling import concatenate, hash_rows, sample_lists
from scimult.types import IntArray

QUERIES_PER_CHUNK = 1 << 10


@dataclass(frozen=True)
class Relation:
    """Papers that share something: an author, a venue.

    Parameters
    ----------
    groups_of : Ragged
        For every paper the groups it belongs to (its authors, its venue).
    members_of : Ragged
        For every group its papers.
    """

    groups_of: Ragged
    members_of: Ragged

    @classmethod
    def from_groups(cls, groups_of: Ragged) -> Relation:
        """Build both directions from the groups of every paper."""
        count = int(groups_of.values.max(initial=-1)) + 1
        members_of = Ragged.from_pairs(groups_of.values, groups_of.owners, count)
        return cls(groups_of, members_of)

    def neighbours(self, papers: IntArray, limit: int, seed: int) -> Ragged:
        """Return papers that share a group with each paper; the paper itself may be among them.

        At most ``limit`` groups of a paper are visited and ``limit`` members of a group drawn
        (with replacement where it has more), so that a venue of a million papers or a paper
        of three thousand authors costs no more than ``limit ** 2``.
        """
        groups = sample_lists(self.groups_of.take(papers), limit, seed, owners=papers)
        sizes = self.members_of.lengths[groups.values]
        draws = np.minimum(sizes, limit)
        visit = np.repeat(np.arange(len(draws), dtype=np.int64), draws)
        starts = np.cumsum(draws) - draws
        draw = np.arange(len(visit), dtype=np.int64) - starts[visit]
        owners, group, size = groups.owners[visit], groups.values[visit], sizes[visit]
        drawn = (hash_rows(seed, papers[owners], group, draw) % size.astype(np.uint64)).astype(
            np.int64
        )
        member = np.where(size > limit, drawn, draw)
        found = self.members_of.values[self.members_of.offsets[group] + member]
        return Ragged.from_pairs(owners, found, len(papers))


@dataclass(frozen=True)
class Links:
    """Papers that a paper links to directly: those it cites.

    Parameters
    ----------
    targets_of : Ragged
        For every paper the papers it links to.
    """

    targets_of: Ragged

    def neighbours(self, papers: IntArray, limit: int, seed: int) -> Ragged:
        """Return at most ``limit`` papers that each paper links to."""
        return sample_lists(self.targets_of.take(papers), limit, seed, owners=papers)


@dataclass(frozen=True)
class LabelsOfNeighbours:
    """Labels of papers close to the query paper.

    Parameters
    ----------
    relation : Relation or Links
        What makes two papers close.
    labels : Ragged
        For every paper all its labels, sorted and unique.
    label_space : range
        Labels that may be returned: those that the query's source chooses from.
    max_neighbours : int
        Bounds the papers looked at per query and group.
    seed : int
        Decides the neighbours.
    """

    relation: Relation | Links
    labels: Ragged
    label_space: range
    max_neighbours: int
    seed: int

    def candidates(self, groups: Groups) -> Ragged:
        """Return the labels of each query's neighbours."""
        parts = []
        for start in range(0, len(groups), QUERIES_PER_CHUNK):
            papers = groups.queries_G[start : start + QUERIES_PER_CHUNK]
            near = self.relation.neighbours(papers, self.max_neighbours, self.seed)
            found = self.labels.take(near.values)
            space = self.label_space
            inside = (found.values >= space.start) & (found.values < space.stop)
            owners = near.owners[found.owners]
            parts.append(Ragged.from_pairs(owners[inside], found.values[inside], len(papers)))
        return concatenate(parts)
