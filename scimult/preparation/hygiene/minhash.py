"""Near-duplicates by MinHash (Broder, 1997) with banding; callers verify the candidates exactly.

``rensa`` computes the signatures. Banding is one sort per band that makes equal keys neighbours,
so that only the signatures grow with the number of texts.

Shape legend: N texts, R rows of a band, P permutations, M pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

from scimult.preparation.hygiene.config import NearConfig
from scimult.preparation.hygiene.normal_forms import text_words
from scimult.types import IntArray, Text

Signatures = NDArray[np.uint32]
RECALL = 0.99
# A text is compared with at most this many earlier ones per band, so that the cost of a template
# that a million texts share stays linear.
NEIGHBOURS = 16
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sketches:
    """MinHash signatures of N texts, undefined for those that are too short to compare."""

    signatures_NP: Signatures
    usable_N: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int, config: NearConfig) -> Sketches:
        """Return room for ``count`` texts."""
        shape = (count, config.permutations)
        return cls(np.zeros(shape, np.uint32), np.zeros(count, np.bool_))

    def fill(self, start: int, texts: Sequence[Text], config: NearConfig) -> None:
        """Sketch texts into the rows from ``start`` on."""
        shingles = [_runs(text, config) for text in texts]
        rows = np.flatnonzero([bool(own) for own in shingles])
        if len(rows):
            digests = RMinHash.digest_matrix_from_token_sets(
                [shingles[row] for row in rows], config.permutations, config.seed
            )
            self.signatures_NP[start + rows] = np.array(digests.to_rows(), dtype=np.uint32)
            self.usable_N[start + rows] = True


def text_shingles(text: Text, config: NearConfig) -> set[str]:
    """Return the shingles of a text; empty if it is too short to compare."""
    return set(_runs(text, config))


def _runs(text: Text, config: NearConfig) -> list[str]:
    """Return all runs of words of title and body; a set of them takes as long again."""
    words = text_words(text)
    if len(words) < config.min_words:
        return []
    starts = range(config.shingle_words)
    return [" ".join(run) for run in zip(*(words[start:] for start in starts), strict=False)]


def jaccard(first: set[str], second: set[str]) -> float:
    """Return the Jaccard similarity of two sets; 0 if both are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def rows_per_band(threshold: float, permutations: int) -> int:
    """Return the longest band that finds pairs at the threshold with recall ``RECALL``.

    A pair of similarity s shares one band of r rows with probability s^r, and one of K bands
    with 1 - (1 - s^r)^K (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4).
    """
    good = [
        rows
        for rows in range(1, permutations + 1)
        if 1 - (1 - threshold**rows) ** (permutations // rows) >= RECALL
    ]
    return max(good, default=1)


def band_keys(signatures_NR: Signatures) -> NDArray[np.uint64]:
    """Return one key per text of a band of R rows; equal bands have equal keys."""
    keys_N = np.zeros(len(signatures_NR), dtype=np.uint64)
    for row_N in signatures_NR.T:
        keys_N = (keys_N ^ row_N) * _MULTIPLIER
        keys_N ^= keys_N >> np.uint64(29)
    return keys_N


def _bands(sketches: Sketches, config: NearConfig) -> Iterator[NDArray[np.uint64]]:
    """Yield the keys of the usable texts, band by band."""
    rows = rows_per_band(config.threshold, config.permutations)
    for start in range(0, config.permutations - rows + 1, rows):
        yield band_keys(sketches.signatures_NP[sketches.usable_N, start : start + rows])


def candidate_pairs(sketches: Sketches, config: NearConfig) -> tuple[IntArray, IntArray]:
    """Return distinct pairs of texts that share a band, the smaller row first; shape ``(M,)``.

    A text is compared with at most ``NEIGHBOURS`` earlier ones per band.
    """
    usable = np.flatnonzero(sketches.usable_N)
    count = len(sketches.usable_N)
    pairs = np.empty(0, dtype=np.int64)
    for keys in _bands(sketches, config):
        order = np.argsort(keys, kind="stable")
        codes = [pairs]
        for distance in range(1, NEIGHBOURS + 1):
            equal = keys[order[distance:]] == keys[order[:-distance]]
            if not equal.any():
                break
            first, second = usable[order[:-distance][equal]], usable[order[distance:][equal]]
            codes.append(first * count + second)
        pairs = np.unique(np.concatenate(codes))
    return pairs // max(count, 1), pairs % max(count, 1)


class SortedBands:
    """Texts sorted once by the key of each band, in which many others are looked up."""

    def __init__(self, sketches: Sketches, config: NearConfig) -> None:
        self._config, self._count = config, max(len(sketches.usable_N), 1)
        usable = np.flatnonzero(sketches.usable_N)
        self._bands = []
        for keys in _bands(sketches, config):
            order = np.argsort(keys, kind="stable")
            self._bands.append((keys[order], usable[order]))

    def candidates(self, sketches: Sketches) -> tuple[IntArray, IntArray]:
        """Return distinct pairs (other text, text) that share a band; shape ``(M,)``.

        Of the texts of a band, another is compared with at most the first ``NEIGHBOURS``.
        """
        usable = np.flatnonzero(sketches.usable_N)
        pairs = np.empty(0, dtype=np.int64)
        for keys, (own, rows) in zip(_bands(sketches, self._config), self._bands, strict=True):
            start, stop = (np.searchsorted(own, keys, side) for side in ("left", "right"))
            codes = [pairs]
            for distance in range(NEIGHBOURS):
                equal = start + distance < stop
                if not equal.any():
                    break
                codes.append(usable[equal] * self._count + rows[start[equal] + distance])
            pairs = np.unique(np.concatenate(codes))
        return pairs // self._count, pairs % self._count
