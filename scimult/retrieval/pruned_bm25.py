"""BM25 over truncated posting lists, for more candidates than every query can be compared with.

Weights are those of `scimult.retrieval.bm25`, in two memory-mapped tables. ``inverted`` lists
for each word the candidates in which it weighs most, up to a limit (champion lists; Manning,
Raghavan and Schütze, 2008, section 7.1.3); ``forward`` lists all words of each candidate. A search
adds up the lists of a query's weightiest words until it has seen a given number of postings, then
scores the best of those candidates by all their words. A query thus costs the same however many
candidates there are. Scores are BM25's; only a candidate can be missing, and none is where no list
is truncated and a query's postings are few enough.

Shape legend: Q queries, C candidates, V words, B candidates or queries of one block, K results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.data.ragged import Ragged, offsets_of
from scimult.errors import DataError
from scimult.files import write_text
from scimult.progress import progress
from scimult.retrieval.analysis import WORDS
from scimult.retrieval.bm25 import K1, B
from scimult.retrieval.runs import Ranking, id_order, places_of, ranking_of_pairs
from scimult.retrieval.selection import check_length
from scimult.types import IntArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_WORDS, _PLACES = "words.txt", "places.npy"
_QUERIES = 64
# Postings sorted, or weighed, at once: about 500 MB.
_SORTED = 1 << 24
# Largest number of postings that scipy indexes with 32 bits.
_MOST_POSTINGS = (1 << 31) - 1
Bag = tuple[IntArray, IntArray]
"""Distinct words of a query and their counts."""


@dataclass(frozen=True)
class Effort:
    """The budget of one query.

    Parameters
    ----------
    postings : int
        Postings to add up, those of the weightiest words first.
    overfetch, spare : int
        ``k`` results come from ``overfetch * k + spare`` candidates scored by all their words.
    """

    postings: int = 200_000
    overfetch: int = 10
    spare: int = 1_000


def write_pruned_bm25(
    folder: Path, ids: Sequence[str], texts: Iterable[Sequence[str]], *, longest: int
) -> None:
    """Write an index into a folder; memory holds one block of texts and the distinct words.

    Parameters
    ----------
    folder : Path
        Receives the files.
    ids : sequence of str
        One distinct id per candidate; they break ties.
    texts : iterable of sequences of str
        One text per candidate, block by block.
    longest : int
        Most candidates to keep per word.

    Raises
    ------
    DataError
        If ids repeat, counts of ids and texts differ, no text has a word, or there are too many
        postings.
    """
    place_C = places_of(id_order(ids))
    length_C, distinct_C, words = _write_counts(folder, texts)
    if len(length_C) != len(ids):
        raise DataError(f"{len(ids)} candidate ids for {len(length_C)} texts")
    offsets = offsets_of(distinct_C)
    if not 0 < offsets[-1] <= _MOST_POSTINGS:
        fix = "add texts" if not offsets[-1] else "mine in namespaces of fewer papers"
        raise DataError("words of candidates", value=int(offsets[-1]), fix=fix)
    np.save(folder / _PLACES, place_C)
    write_text(folder / _WORDS, "\n".join(words))
    np.save(folder / "forward.offsets.npy", offsets.astype(np.int32))
    df_V = _write_weights(folder, length_C, offsets, len(words))
    _write_inverted(folder, offsets, df_V, longest)


class PrunedBM25Index:
    """An index written by ``write_pruned_bm25``."""

    def __init__(self, folder: Path, effort: Effort | None = None) -> None:
        self._effort = effort or Effort()
        self.place_C: IntArray = np.load(folder / _PLACES)
        words = (folder / _WORDS).read_text(encoding="utf-8").split("\n")
        self._words = {word: number for number, word in enumerate(words)}
        candidates = len(self.place_C)
        self._forward = _open_matrix(folder, "forward", (candidates, len(words)))
        self._inverted = _open_matrix(folder, "inverted", (len(words), candidates))
        self._heaviest_V = np.load(folder / "heaviest.npy")
        self._lengths_V = np.diff(self._inverted.indptr)

    def __len__(self) -> int:
        return len(self.place_C)

    def search(
        self, queries: Sequence[str], k: int, *, exclude_Q: IntArray | None = None
    ) -> Ranking:
        """Return approximately the best ``k`` candidates of `BM25Index.search`."""
        k = min(check_length(k), len(self))
        ranking = Ranking.empty(len(queries), k)
        for start in range(0, len(queries), _QUERIES):
            some = slice(start, start + _QUERIES)
            bags = self._word_counts(queries[some])
            excluded = [-1] * len(bags) if exclude_Q is None else exclude_Q[some].tolist()
            most = self._effort.overfetch * k + self._effort.spare
            ranking.fill(some, self._ranked(bags, self._gather(bags, most, excluded), k))
        return ranking

    def rank_listed(self, queries: Sequence[str], lists: Ragged) -> Ranking:
        """Rank all candidate rows that ``lists`` gives each query."""
        return self._ranked(self._word_counts(queries), lists, len(self))

    def _word_counts(self, queries: Sequence[str]) -> list[Bag]:
        """Return the distinct words of each query and their counts."""
        numbers = self._words
        bags = []
        for words in WORDS(queries):
            known = [numbers[word] for word in words if word in numbers]
            bags.append(np.unique(np.array(known, dtype=np.int64), return_counts=True))
        return bags

    def _gather(self, bags: Sequence[Bag], most: int, excluded: Sequence[int]) -> Ragged:
        """Return the ``most`` candidates of each query that its weightiest words favour."""
        weightiest = [self._weightiest(*bag) for bag in bags]
        sums = _query_matrix(weightiest, len(self._words)) @ self._inverted
        lists = []
        for query, row in enumerate(excluded):
            part = slice(sums.indptr[query], sums.indptr[query + 1])
            rows, scores = sums.indices[part], sums.data[part]
            is_other = rows != row
            rows, scores = rows[is_other], scores[is_other]
            if len(rows) > most:
                rows = rows[np.argpartition(-scores, most - 1)[:most]]
            lists.append(rows)
        values = np.concatenate(lists).astype(np.int64)
        return Ragged(values, offsets_of(np.array([len(rows) for rows in lists])))

    def _weightiest(self, words: IntArray, counts: IntArray) -> Bag:
        # A word is worth what it may add to a score, and more if fewer candidates have it.
        lengths = self._lengths_V[words]
        worth = counts * self._heaviest_V[words] / np.sqrt(np.maximum(lengths, 1))
        order = np.argsort(-worth, kind="stable")
        enough = int(np.searchsorted(np.cumsum(lengths[order]), self._effort.postings)) + 1
        top = np.sort(order[:enough])
        return words[top], counts[top]

    def _ranked(self, bags: Sequence[Bag], lists: Ragged, k: int) -> Ranking:
        """Score candidates by all their words; drop those that are certainly beyond ``k``."""
        rows, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        counts_V = np.zeros(len(self._words))
        for (words, counts), listed in zip(bags, lists, strict=True):
            counts_V[words] = counts
            # In float64, so that the order of the words does not matter.
            score = (self._forward[listed] @ counts_V).astype(np.float32)
            counts_V[words] = 0
            if len(listed) > k > 0:
                best = score >= np.partition(score, len(score) - k)[len(score) - k]
                listed, score = listed[best], score[best]
            rows.append(listed)
            scores.append(score)
        owners = np.repeat(np.arange(len(bags)), [len(some) for some in scores[1:]])
        return ranking_of_pairs(
            owners, np.concatenate(rows), np.concatenate(scores), len(bags), self.place_C
        )


def _write_counts(
    folder: Path, texts: Iterable[Sequence[str]]
) -> tuple[IntArray, IntArray, list[str]]:
    """Write each candidate's words and counts; return its words, distinct words, and all words."""
    numbers: dict[str, int] = {}
    lengths, distinct = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with _raw(folder, "forward.indices") as words, _raw(folder, "counts") as counts:
        for block in texts:
            codes = [
                [numbers.setdefault(word, len(numbers)) for word in text] for text in WORDS(block)
            ]
            length_B = np.array([len(text) for text in codes], dtype=np.int64)
            flat = np.fromiter(chain.from_iterable(codes), np.int64, int(length_B.sum()))
            owners = np.repeat(np.arange(len(block)), length_B)
            keys, count = np.unique(owners * len(numbers) + flat, return_counts=True)
            owners, word = np.divmod(keys, max(1, len(numbers)))
            word.astype(np.int32).tofile(words)
            count.astype(np.float32).tofile(counts)
            lengths.append(length_B)
            distinct.append(np.bincount(owners, minlength=len(block)))
    return np.concatenate(lengths), np.concatenate(distinct), list(numbers)


def _write_weights(folder: Path, length_C: IntArray, offsets: IntArray, size: int) -> IntArray:
    """Write what each word adds to a candidate's score; return each word's document frequency."""
    words = _mapped(folder, "forward.indices", np.int32)
    counts = _mapped(folder, "counts", np.float32)
    df_V = np.zeros(size, dtype=np.int64)
    for some in _slices(len(words)):
        df_V += np.bincount(words[some], minlength=size)
    # As bm25s's "lucene" (Kamphuis et al., 2020), in float64 until it is stored.
    idf_V = np.log(1 + (len(length_C) - df_V + 0.5) / (df_V + 0.5)).astype(np.float32)
    norm_C = K1 * ((1 - B) + B * length_C / length_C.mean())
    with _raw(folder, "forward.data") as file:
        for some in _slices(len(words)):
            positions = np.arange(some.start, min(some.stop, len(words)))
            norms = norm_C[np.searchsorted(offsets, positions, side="right") - 1]
            weights = idf_V[words[some]] * (counts[some] / (norms + counts[some]))
            weights.astype(np.float32).tofile(file)
    (folder / "counts.bin").unlink()
    return df_V


def _write_inverted(folder: Path, offsets: IntArray, df_V: IntArray, longest: int) -> None:
    """Write the candidates in which each word weighs most, for a range of words at a time."""
    words = _mapped(folder, "forward.indices", np.int32)
    weights = _mapped(folder, "forward.data", np.float32)
    ends = np.cumsum(df_V)
    heaviest_V = np.zeros(len(df_V), dtype=np.float32)
    with _raw(folder, "inverted.indices") as rows_file, _raw(folder, "inverted.data") as data_file:
        first = 0
        while first < len(df_V):
            seen = ends[first] - df_V[first]
            last = max(first + 1, int(np.searchsorted(ends, seen + _SORTED, side="right")))
            keys, rows = [], []
            for some in progress(list(_slices(len(words))), "words", unit="block"):
                in_range = (words[some] >= first) & (words[some] < last)
                positions = some.start + np.flatnonzero(in_range)
                # By word, then by descending weight, whose bits ascend with it.
                bits = weights[positions].view(np.uint32).astype(np.int64)
                keys.append(words[positions].astype(np.int64) << 32 | (0xFFFFFFFF - bits))
                rows.append(np.searchsorted(offsets, positions, side="right") - 1)
            key_P, row_P = np.concatenate(keys), np.concatenate(rows)
            order = np.argsort(key_P, kind="stable")
            starts = np.cumsum(df_V[first:last]) - df_V[first:last]
            rank_P = np.arange(len(order)) - np.repeat(starts, df_V[first:last])
            postings = order[rank_P < longest]
            heaviest = 0xFFFFFFFF - (key_P[order[starts]] & 0xFFFFFFFF)
            heaviest_V[first:last] = heaviest.astype(np.uint32).view(np.float32)
            postings = postings[np.lexsort((row_P[postings], key_P[postings] >> 32))]
            row_P[postings].astype(np.int32).tofile(rows_file)
            data = (0xFFFFFFFF - (key_P[postings] & 0xFFFFFFFF)).astype(np.uint32)
            data.tofile(data_file)
            first = last
    lengths_V = np.minimum(df_V, longest)
    np.save(folder / "inverted.offsets.npy", offsets_of(lengths_V).astype(np.int32))
    np.save(folder / "heaviest.npy", heaviest_V)


def _query_matrix(bags: Sequence[Bag], size: int) -> csr_matrix:
    """Return the words of queries as a sparse matrix, shape ``(B, V)``."""
    from scipy.sparse import csr_matrix  # a dense search does not need it

    offsets = offsets_of(np.array([len(words) for words, _ in bags]))
    words = np.concatenate([words for words, _ in bags]).astype(np.int32)
    counts = np.concatenate([counts for _, counts in bags]).astype(np.float32)
    return csr_matrix((counts, words, offsets.astype(np.int32)), shape=(len(bags), size))


def _open_matrix(folder: Path, name: str, shape: tuple[int, int]) -> csr_matrix:
    from scipy.sparse import csr_matrix

    data = _mapped(folder, f"{name}.data", np.float32)
    indices = _mapped(folder, f"{name}.indices", np.int32)
    offsets = np.load(folder / f"{name}.offsets.npy")
    return csr_matrix((data, indices, offsets), shape=shape, copy=False)


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, start + _SORTED) for start in range(0, count, _SORTED))


def _raw(folder: Path, name: str) -> Any:
    return (folder / f"{name}.bin").open("wb")


def _mapped(folder: Path, name: str, dtype: type) -> Any:
    return np.memmap(folder / f"{name}.bin", dtype=dtype, mode="r")
