"""Find papers and queries that a corpus has several times.

Shape legend: N texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from scimult.data.importers.doi import short_doi
from scimult.data.text_store import TextStore
from scimult.preparation.hygiene.config import ALL_KEYS, HygieneConfig, NearConfig
from scimult.preparation.hygiene.minhash import (
    NEIGHBOURS,
    Sketches,
    candidate_pairs,
    jaccard,
    text_shingles,
)
from scimult.preparation.hygiene.normal_forms import hash64, title_key
from scimult.progress import bar
from scimult.types import IntArray, Text

# Papers with the same title are one paper unless both have abstracts less similar than this.
SAME_ABSTRACT = 0.2
Pair = tuple[int, int]


@dataclass(frozen=True)
class Keys:
    """The keys by which N texts are compared.

    ``titles_N`` are hashes of a paper's title key or a query's words, 0 if that is too short;
    ``has_body_N`` says whether a text has an abstract. ``sketches`` are empty unless
    near-duplicates are wanted.
    """

    titles_N: NDArray[np.uint64]
    has_body_N: NDArray[np.bool_]
    sketches: Sketches


def _compute_keys(store: TextStore, config: HygieneConfig) -> Keys:
    """Compute the keys of all texts in one pass."""
    count, sketch = len(store), "near" in config.keys
    keys = Keys(
        np.zeros(count, np.uint64),
        np.zeros(count, np.bool_),
        Sketches.empty(count if sketch else 0, config.near),
    )
    for start, texts in store.chunks("fingerprints of texts"):
        stop = start + len(texts)
        keys.titles_N[start:stop] = [_text_hash(text, config.min_title) for text in texts]
        keys.has_body_N[start:stop] = [bool(text.body.strip()) for text in texts]
        if sketch:
            keys.sketches.fill(start, texts, config.near)
    return keys


def find_duplicates(
    store: TextStore, dois: Sequence[str | None], config: HygieneConfig
) -> tuple[IntArray, Counter[str]]:
    """Group duplicates: papers by the configured keys, queries by their words.

    Groups are connected components: if a text equals two others, all three are one group. The
    keeper of a group is its first text with an abstract.

    Return the keeper of each text's group (its own row if it has no duplicate), and counts of the
    texts with another keeper, by the first key that matched, and of texts kept apart.
    """
    keys = _compute_keys(store, config)
    counts: Counter[str] = Counter()
    finders = {
        "doi": lambda: _same_doi(dois),
        "title": lambda: _same_title(store, keys, config, counts),
        "near": lambda: _near(store, keys, config),
    }
    keeper_N = np.arange(len(store), dtype=np.int64)
    pairs: list[IntArray] = []
    merged = 0
    for name in ALL_KEYS:
        if name not in config.keys:
            continue
        pairs.append(np.array(list(finders[name]()), dtype=np.int64).reshape(-1, 2))
        keeper_N = _keepers(np.concatenate(pairs), keys.has_body_N)
        now = int((keeper_N != np.arange(len(store))).sum())
        counts[f"duplicates by {name}"] += now - merged
        merged = now
    return keeper_N, counts


def _text_hash(text: Text, min_title: int) -> int:
    if text.kind == "label":
        return 0
    key = title_key(text.title)
    if text.kind == "query":
        return hash64(f"query {key}") if key else 0
    return hash64(key) if len(key) >= min_title else 0


def _same_doi(dois: Sequence[str | None]) -> Iterator[Pair]:
    first: dict[str, int] = {}
    for row, doi in enumerate(dois):
        key = short_doi(doi) if doi else ""
        if key and first.setdefault(key, row) != row:
            yield first[key], row


def _same_title(
    store: TextStore, keys: Keys, config: HygieneConfig, counts: Counter[str]
) -> Iterator[Pair]:
    for rows in _equal_runs(keys.titles_N):
        texts = store.texts(rows)
        clusters = _cluster_by_abstract(texts, config.near)
        counts["same title, other abstract"] += len(clusters) - 1
        for cluster in clusters:
            for position in cluster[1:]:
                yield int(rows[cluster[0]]), int(rows[position])


def _equal_runs(keys_N: NDArray[np.uint64]) -> Iterator[IntArray]:
    """Yield the rows of each key shared by several texts, ascending; key 0 is no key."""
    rows = np.flatnonzero(keys_N)
    rows = rows[np.argsort(keys_N[rows], kind="stable")]
    ends = np.flatnonzero(np.diff(keys_N[rows])) + 1
    for start, stop in zip(np.r_[0, ends], np.r_[ends, len(rows)], strict=True):
        if stop - start > 1:
            yield rows[start:stop]


def _cluster_by_abstract(texts: Sequence[Text], config: NearConfig) -> list[list[int]]:
    """Cluster texts with the same title: those with dissimilar abstracts are different papers.

    A text without an abstract joins the first cluster. A text is compared with at most
    ``NEIGHBOURS`` clusters.
    """
    clusters: list[list[int]] = []
    abstracts: list[set[str]] = []
    bare: list[int] = []
    for position, text in enumerate(texts):
        own = text_shingles(Text("paper", "", text.body), config)
        if not own:
            bare.append(position)
            continue
        for cluster, abstract in zip(clusters, abstracts[:NEIGHBOURS], strict=False):
            if jaccard(own, abstract) >= SAME_ABSTRACT:
                cluster.append(position)
                break
        else:
            clusters.append([position])
            abstracts.append(own)
    if bare:
        clusters[:1] = [[*(clusters[0] if clusters else ()), *bare]]
    return clusters


def _near(store: TextStore, keys: Keys, config: HygieneConfig) -> Iterator[Pair]:
    """Yield pairs of papers whose shingles are at least as similar as the threshold."""
    first, second = candidate_pairs(keys.sketches, config.near)
    with bar("near-duplicates", total=len(first), unit="pair") as meter:
        for pair in zip(first.tolist(), second.tolist(), strict=True):
            one, other = store.texts(pair)
            if one.kind == other.kind == "paper":
                similarity = jaccard(*(text_shingles(t, config.near) for t in (one, other)))
                if similarity >= config.near.threshold:
                    yield pair
            meter.update()


def _keepers(pairs: IntArray, has_body_N: NDArray[np.bool_]) -> IntArray:
    """Return the keeper of each text's component: the first with a body, else the first."""
    count = len(has_body_N)
    ones = np.ones(len(pairs), dtype=np.int8)
    graph = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    component_N = connected_components(graph, directed=False)[1]
    order = np.lexsort((np.arange(count), ~has_body_N, component_N))
    starts = np.r_[True, np.diff(component_N[order]) != 0][:count]
    keeper_of_component = order[starts]
    return np.asarray(keeper_of_component[component_N], dtype=np.int64)
