"""Every mining rule in plain Python, one paper at a time, with the same keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from scimult.data.pairs import known_positives
from scimult.data.prepared import PreparedData, read_triples
from scimult.preparation.mining.hashing import key
from scimult.preparation.mining.plans import DRAWS
from tests.prepared_folders import Metadata, citations, shown

Pairs = Collection[tuple[int, int]]
Group = tuple[int, tuple[int, ...]]


def seconds(pairs: Pairs, first: int) -> set[int]:
    """Return the partners of a number."""
    return {b for a, b in pairs if a == first}


def sample(found: Collection[int], owner: int, count: int, seed: int) -> set[int]:
    """Return the ``count`` values with the smallest keys."""
    return set(sorted(found, key=lambda value: key(seed, owner, value))[:count])


@dataclass
class World:
    """The data of rules, as sets, and the groups to mine: a query and its positives each."""

    groups: list[Group]
    edges: Pairs = ()
    shown: Pairs = ()
    triples: Collection[tuple[int, int, int]] = ()
    values: dict[str, Pairs] = field(default_factory=dict)
    labels: range = range(0)
    candidates: tuple[int, ...] = ()

    @classmethod
    def of(cls, data: PreparedData, task: str, split: str) -> World:
        """Read a prepared folder with one source."""
        (entry,) = [e for e in data.manifest.pairs if (e.task, e.split) == (task, split)]
        pairs = data.open_pairs(entry)
        meta = Metadata.open(data.folder, len(data.texts))
        kinds = {"label": meta.labels, "author": meta.authors, "venue": meta.venues}
        rows = {
            name: set(zip(lists.owners.tolist(), lists.values.tolist(), strict=True))
            for name, lists in kinds.items()
        }
        labels = range(*data.manifest.label_rows[entry.namespace])
        papers = data.papers(entry.namespace).tolist()
        return cls(
            [
                (int(query), tuple(positives.tolist()))
                for query, positives in zip(pairs.queries, pairs.positives, strict=True)
            ],
            {(a, b) for a, b in citations(data).tolist()},
            {(a, b) for a, b in shown(data).tolist()},
            {(a, b, c) for a, b, c in read_triples(data.folder).tolist()},
            rows,
            labels,
            tuple(labels) if entry.part == "labels" else tuple(papers),
        )

    def cited_by_cited(self, number: int) -> set[int]:
        """Return the papers that the positives cite."""
        return {c for positive in self.groups[number][1] for c in seconds(self.edges, positive)}

    def co_cited(self, number: int, limit: int, seed: int) -> set[int]:
        """Return the papers that are co-cited with a positive."""
        found: set[int] = set()
        for positive in self.groups[number][1]:
            citing = {a for a, b in self.edges if b == positive}
            for paper in sample(citing, positive, limit, seed):
                found |= seconds(self.edges, paper)
        return found

    def near(self, relation: str, query: int, limit: int, seed: int) -> set[int]:
        """Return papers that a query cites, or that share an author or its venue."""
        if relation == "cited":
            return sample(seconds(self.edges, query), query, limit, seed)
        found = set()
        for value in sample(seconds(self.values[relation], query), query, limit, seed):
            members = sorted(a for a, b in self.values[relation] if b == value)
            if len(members) <= limit:
                found |= set(members)
                continue
            draws = [key(seed, query, value, draw) % len(members) for draw in range(limit)]
            found |= {members[draw] for draw in draws}
        return found

    def labels_of(self, number: int, relation: str, limit: int, seed: int) -> set[int]:
        """Return the source's labels of papers related to the query."""
        near = self.near(relation, self.groups[number][0], limit, seed)
        return {b for a, b in self.values["label"] if a in near and b in self.labels}

    def shown_for(self, number: int) -> set[int]:
        """Return papers shown for the query, or given for one of its pairs."""
        query, positives = self.groups[number]
        given = {n for q, p, n in self.triples if q == query and p in positives}
        return seconds(self.shown, query) | given

    def random(self, number: int, count: int, seed: int) -> set[int]:
        """Return the results of four draws per candidate."""
        draws = [key(seed, number, draw) % len(self.candidates) for draw in range(DRAWS * count)]
        return {self.candidates[draw] for draw in draws}

    def same_field(self, number: int, kind: str, count: int, seed: int) -> set[int]:
        """Return the results of drawing a field, then one of its candidates."""
        fields = sorted(seconds(self.values[kind], self.groups[number][0]))
        found = set()
        for draw in range(DRAWS * count if fields else 0):
            chosen = fields[key(seed, number, draw) % len(fields)]
            members = sorted(
                a for a, b in self.values[kind] if b == chosen and a in self.candidates
            )
            if members:
                found.add(members[key(seed, number, draw, chosen) % len(members)])
        return found

    def other_field(self, number: int, kind: str, count: int, seed: int) -> set[int]:
        """Return the draws that have a field, but none of the query's."""
        mine = seconds(self.values[kind], self.groups[number][0])
        drawn = self.random(number, count, seed)
        return {
            row
            for row in drawn
            if mine
            and seconds(self.values[kind], row)
            and not seconds(self.values[kind], row) & mine
        }


def known_of(data: PreparedData, task: str, part: str) -> set[tuple[int, int]]:
    """Return the papers that must not become negatives of a query."""
    files = [pairs for split in ("train", "dev") for pairs in data.pairs(split)]
    known = known_positives([file for file in files if file.task == task])
    pairs = {(query, row) for query, rows in known.items() for row in rows.tolist()}
    if part == "citations":
        pairs |= {(a, b) for a, b in citations(data).tolist()}
        pairs |= {(b, a) for a, b in pairs}
    if part == "labels":
        lists = Metadata.open(data.folder, len(data.texts)).labels
        pairs |= set(zip(lists.owners.tolist(), lists.values.tolist(), strict=True))
    return pairs


def pool(
    world: World,
    number: int,
    finds: list[tuple[set[int], int]],
    known: Pairs,
    limit: int,
    seed: int,
) -> tuple[set[int], list[set[int]]]:
    """Return a group's pool, and what each rule adds, from ``(candidates, count)`` per rule."""
    query, positives = world.groups[number]
    kept = [
        sample(
            {c for c in found if c != query and c not in positives and (query, c) not in known},
            number,
            count,
            seed + place + 1,
        )
        for place, (found, count) in enumerate(finds)
    ]
    return sample(set().union(*kept), number, limit, seed), kept


def as_rows(pairs: Pairs) -> np.ndarray:
    """Return pairs as an array, shape ``(N, 2)``."""
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
