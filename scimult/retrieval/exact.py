"""Exact maximum inner product search over dense embeddings.

Blocks of candidates are multiplied into one reused buffer (`scimult.retrieval.passes`). Possible
results of a query are kept as integers that encode score and id order
(`scimult.retrieval.selection`), so equal float32 scores come out in the order of
`scimult.retrieval.runs`, wherever blocks are cut.

Where the machine multiplies int8 or bfloat16 faster, a first pass multiplies rounded vectors and
keeps every candidate that the error of these products cannot rule out
(`scimult.retrieval.rounded`, for a few queries `scimult.retrieval.byte_scan`); only those are
multiplied in float32. No candidate is lost: the lists are those of float32 products alone.

Shape legend: Q queries, C candidates, D width, K results per query, B candidates of one block,
W candidates of a query that are multiplied in float32, P listed (query, candidate) pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError, DataError, one_of
from scimult.forks import survive_forks
from scimult.hardware import multiplies_bfloat16, without_autocast
from scimult.heap import keep_freed_memory
from scimult.listed_products import may_use_faiss
from scimult.products import FEW, multiplies_bytes
from scimult.retrieval.byte_scan import ByteScan
from scimult.retrieval.copies import Copies, equal_rows
from scimult.retrieval.few_candidates import (
    MOST_CANDIDATES,
    FewCandidates,
    FewQueries,
    OneProduct,
)
from scimult.retrieval.few_on_device import FewOnDevice
from scimult.retrieval.nearest import MOST_QUERIES, Nearest
from scimult.retrieval.passes import Passes, Work
from scimult.retrieval.query_shares import Advance, query_shares, search_in_parts
from scimult.retrieval.rounded import ByteVectors, HalfVectors, Rounded
from scimult.retrieval.runs import Ranking, id_order, places_of, ranking_of_pairs
from scimult.retrieval.selection import (
    check_excluded,
    check_finite,
    check_length,
    check_listed,
)
from scimult.retrieval.several_queries import FASTER_THAN_BYTES, SeveralQueries
from scimult.retrieval.vectors import Vectors, check_array
from scimult.types import FloatArray, IntArray, Similarity

FirstPass = Literal["auto", "int8", "bfloat16", "float32"]

FEW_SEARCHES = 32
"""Queries, a few at a time, after which a copy in bytes is made; as many more make up for it."""

# Two passes pay off with this many numbers per result, and more than few candidates; on a CPU also
# with so many candidates per result that rounding leaves few of them.
_NUMBERS = {"int8": 1 << 18, "bfloat16": 1 << 16}
_CANDIDATES = {"int8": 200, "bfloat16": 160}
# Of all candidates on a CPU, and scores of all queries with a few candidates.
_LEAST_CANDIDATES, _LEAST_SCORES = 1 << 12, 1 << 20
_NUMBERS_ON_GPU, _LEAST_WIDTH = 1 << 17, 64


class ExactIndex:
    """Candidates that can be searched by dot product, cosine or Euclidean distance.

    Parameters
    ----------
    ids : sequence of str
        One distinct id per candidate; they break ties.
    embeddings_CD : array
        Shape ``(C, D)``, floating point; may be memory-mapped and of half precision: scores are
        float32 products. Do not change it while the index is in use. On a CPU up to 64 MiB of it
        are copied in the layout of several queries' products; few candidates (`few_candidates`)
        in their order, too.
    similarity : {"dot", "cosine", "l2"}
        ``l2`` ranks by Euclidean distance through ``q · d − ‖d‖²/2``; where candidates have much in
        common, a point between them is first subtracted from q and d, so that it costs no digits.
        Its scores are that number, which differs from ``−‖q − d‖²/2`` by a constant per query. The
        cosine with a zero vector is 0.
    device : torch.device or str
        Where to multiply. A GPU keeps the candidates if they fit.
    first_pass : {"auto", "int8", "bfloat16", "float32"}
        ``int8`` (on a CPU) and ``bfloat16`` use that type for the first of two passes, and keep a
        copy of the candidates a quarter or half the size of float32; ``float32`` makes one pass;
        ``auto`` makes two where such products are fast and the candidates are in the device's
        memory and many: 8,192, and for each result 160 with 65,536 numbers for bfloat16 (16,000 of
        width 768 for the best 100), 200 with 262,144 for int8 (34,000); on a GPU 131,072 numbers.
        After 32 queries, up to four at a time, by dot product or cosine among 16,777,216 numbers,
        such read bytes in a first pass, too (`scimult.retrieval.byte_scan`).
    query_rows, block_rows : int, optional
        Size of the buffer of scores; default: what suits the device.

    Raises
    ------
    DataError
        If ids repeat, their number differs from the rows, or the array is not a matrix.
    UnknownNameError
        If there is no such similarity or first pass.
    ConfigError
        If int8 is requested where it is not supported.
    """

    def __init__(
        self,
        ids: Sequence[str],
        embeddings_CD: FloatArray,
        similarity: Similarity,
        *,
        device: torch.device | str = "cpu",
        first_pass: FirstPass = "auto",
        query_rows: int | None = None,
        block_rows: int | None = None,
    ) -> None:
        check_array(embeddings_CD, "candidate embeddings")
        if embeddings_CD.ndim != 2 or len(ids) != len(embeddings_CD) or not len(ids):
            problem = f"{len(ids)} candidate ids for embeddings of shape {embeddings_CD.shape}"
            raise DataError(problem, fix="pass one row of equal width per id, and at least one")
        one_of("similarity", similarity, get_args(Similarity))
        one_of("first pass", first_pass, get_args(FirstPass))
        self.ids, self.similarity, self.device = ids, similarity, torch.device(device)
        if first_pass == "int8" and not (self.device.type == "cpu" and multiplies_bytes()):
            problem = f"int8 products are not supported on {self.device} here"
            fix = "use first_pass auto, which checks the machine"
            raise ConfigError(problem, value=first_pass, fix=fix)
        if self.device.type == "cpu":
            keep_freed_memory()
            survive_forks()
        self.order_C = id_order(ids)
        self.place_C = places_of(self.order_C)
        self._embeddings_CD = embeddings_CD
        self._vectors = Vectors(embeddings_CD, similarity, self.device)
        self._width, self._first_pass = embeddings_CD.shape[1], first_pass
        self._on_host = self.device.type == "cpu"
        self._query_rows, self._block_rows = query_rows, block_rows
        # Then another way is not taken because it is faster.
        self._as_told = first_pass in ("int8", "bfloat16") or block_rows is not None
        self._built_nearest: Nearest | None = None
        self._single_queries = 0

    def search(
        self,
        queries_QD: FloatArray,
        k: int,
        *,
        exclude_Q: IntArray | None = None,
        show_progress: bool = False,
    ) -> Ranking:
        """Return the best ``k`` candidates of every query (all, if there are fewer).

        Parameters
        ----------
        queries_QD : FloatArray
            Shape ``(Q, D)``.
        k : int
            Results per query.
        exclude_Q : IntArray, optional
            One candidate row per query to leave out of its list; -1 for none.

        Raises
        ------
        DataError
            If widths differ, an embedding or a product that may be listed is not finite, ``k`` is
            negative, or ``exclude_Q`` has no number per query.
        """
        check_array(queries_QD, "query embeddings")
        k = min(check_length(k), len(self.ids))
        check_excluded(exclude_Q, len(queries_QD))
        parts, workers = query_shares(len(queries_QD), self._vectors.shape, self.device)
        if len(parts) == 1 and not show_progress:
            return self._search(queries_QD, k, exclude_Q, lambda _: None)
        if workers > 1:
            self._make_ready(len(queries_QD) // len(parts), k)

        def search(some: slice, advance: Advance) -> Ranking:
            excluded = None if exclude_Q is None else exclude_Q[some]
            return self._search(queries_QD[some], k, excluded, advance)

        lists, candidates = (len(queries_QD), k), len(self.ids)
        return search_in_parts(
            search,
            parts,
            workers,
            lists=lists,
            candidates=candidates,
            show_progress=show_progress,
        )

    def _make_ready(self, queries: int, k: int) -> None:
        """Make copies of the candidates that else each thread would make for itself."""
        at_once = self._at_once(queries, k)
        if isinstance(at_once, FewCandidates):
            _ = at_once.packed_CD
        elif at_once is None and self._rounded(k) is None:
            _ = self._copies

    def _search(
        self,
        queries_QD: FloatArray,
        k: int,
        exclude_Q: IntArray | None,
        advance: Advance,
    ) -> Ranking:
        """Search for some queries by what is fastest for their number."""
        scan = self._scan_for(len(queries_QD), k)
        if scan is None and exclude_Q is None and k:
            ranking = self._by_faiss(queries_QD, k)
            if ranking is not None:
                return ranking
        queries = self._vectors.queries(queries_QD)
        if not len(queries):
            return Ranking.empty(0, k)
        with without_autocast(self.device):
            at_once = scan or self._at_once(len(queries), k)
            if at_once is not None:
                ranking = at_once.search(queries, k, exclude_Q)
                if ranking is not None:
                    advance(len(self.ids))
                    return ranking
            excluded_Q = np.full(len(queries), -1) if exclude_Q is None else exclude_Q
            return self._in_passes(queries, k, excluded_Q, advance)

    def _scan_for(self, queries: int, k: int) -> ByteScan | None:
        """Return the candidates in bytes for few queries, once there were some such searches."""
        may = self._first_pass == "auto" and self._block_rows is None and self.similarity != "l2"
        if not (may and self._on_host and k and ByteScan.suits(self._vectors, queries, k)):
            return None
        if self._few is not None:
            return None
        self._single_queries += queries
        is_made = self._single_queries > FEW_SEARCHES
        return self._scan if is_made and self._scan.is_useful else None

    @cached_property
    def _scan(self) -> ByteScan:
        return ByteScan(self._vectors, self.place_C)

    def _by_faiss(self, queries_QD: FloatArray, k: int) -> Ranking | None:
        """Return what faiss finds for few usual queries; None where it cannot tell or is slow."""
        usual = queries_QD.dtype == np.float32 and queries_QD.flags.c_contiguous
        few = queries_QD.ndim == 2 and len(queries_QD) <= MOST_QUERIES
        if not (usual and few) or queries_QD.shape[1] != self._width:
            return None
        nearest = self._nearest
        if nearest is None or not nearest.suits(len(queries_QD)):
            return None
        if self.similarity == "cosine":
            queries_QD = self._vectors.queries(queries_QD).numpy()
        return nearest.search(queries_QD, k)

    @property
    def _nearest(self) -> Nearest | None:
        """The candidates for faiss, once a search has looked at all of them."""
        if self._built_nearest is None and self._on_host and may_use_faiss():
            few, whole_CD = self._few, self._vectors.whole
            if isinstance(few, FewCandidates):
                if few.bias_C is None:
                    self._built_nearest = Nearest(few.vectors_CD, self.place_C, self.order_C)
            elif whole_CD is not None and self.similarity == "dot" and not self._as_told:
                self._built_nearest = Nearest(whole_CD.numpy(), self.place_C)
        return self._built_nearest

    def _in_passes(
        self, queries: Tensor, k: int, excluded_Q: IntArray, advance: Advance
    ) -> Ranking:
        # One pass for few queries: memory bandwidth is the limit, and the numbers are the same.
        few = len(queries) <= FEW and self.device.type == "cpu"
        rounded = None if few else self._rounded(k)
        ranking = Ranking.empty(len(queries), k)
        work = Work(queries, excluded_Q, k)
        for lists in self._passes.lists(work, rounded, advance):
            # Products of few queries are equal for copies, too.
            if not (few or lists.by_pairs) and self._copies is not None:
                excluded_P = excluded_Q[lists.queries_P]
                self._copies.level(lists.rows_PK, lists.scores_PK, excluded_P)
            ranking.scores_QK[lists.queries_P] = lists.scores_PK
            ranking.rows_QK[lists.queries_P] = lists.rows_PK
        check_listed(ranking.rows_QK, len(self.ids), excluded_Q)
        return ranking

    def shown_scores(self, queries_QD: FloatArray, ranking: Ranking) -> FloatArray:
        """Return a ranking's scores for people: for ``l2`` minus the distance, else as they are."""
        if self.similarity != "l2":
            return ranking.scores_QK
        scores_QK: FloatArray = ranking.scores_QK.copy()
        for scores_K, rows_K, query_D in zip(scores_QK, ranking.rows_QK, queries_QD, strict=True):
            vectors_KD = self._embeddings_CD[rows_K[rows_K >= 0]].astype(np.float64)
            scores_K[rows_K >= 0] = 0.0 - np.linalg.norm(vectors_KD - query_D, axis=1)
        return scores_QK

    def rank_listed(self, queries_QD: FloatArray, lists: Ragged) -> Ranking:
        """Rank only the candidate rows that ``lists`` gives each query.

        Raises
        ------
        DataError
            If widths differ or an embedding or a product is not finite.
        """
        check_array(queries_QD, "query embeddings")
        queries = self._vectors.queries(queries_QD)
        pairs = map(torch.from_numpy, (lists.owners, lists.values))
        scores_P = self._vectors.products_of(queries, *pairs)
        check_finite(scores_P, "a product of two embeddings")
        values_P = scores_P.cpu().numpy()
        return ranking_of_pairs(lists.owners, lists.values, values_P, len(lists), self.place_C)

    @cached_property
    def _passes(self) -> Passes:
        return Passes(
            self._vectors,
            self.order_C,
            self.place_C,
            on_host=self._on_host,
            query_rows=self._query_rows,
            block_rows=self._block_rows,
        )

    @cached_property
    def _few(self) -> FewCandidates | FewOnDevice | None:
        if self._as_told:
            return None
        if not self._on_host:
            return FewOnDevice(self._vectors, self.place_C) if self._vectors.in_reach else None
        if not FewCandidates.suits(self._vectors):
            return None
        return FewCandidates(self._vectors, self.order_C, self.place_C)

    def _at_once(self, queries: int, k: int) -> OneProduct | SeveralQueries | FewOnDevice | None:
        """Return what searches for this number of queries in one product, if anything does."""
        if not self._on_host or self._block_rows is not None:
            return self._few
        if self._few is not None:
            many = queries * len(self.ids) >= _LEAST_SCORES
            return None if many and self._type(k) != "float32" else self._few
        parts = self._vectors, self.order_C, self.place_C, self._passes.block_rows(queries)
        if FewQueries.suits(queries, len(self.ids)):
            return FewQueries(*parts)
        if not SeveralQueries.suits(queries, len(self.ids)):
            return None
        in_bytes = self._type(k) == "int8"
        return None if in_bytes and queries > FASTER_THAN_BYTES else self._several

    @cached_property
    def _several(self) -> SeveralQueries | None:
        if self._as_told or not SeveralQueries.may_copy(self._vectors):
            return None
        return SeveralQueries(self._vectors, self.place_C)

    @cached_property
    def _copies(self) -> Copies | None:
        groups = equal_rows(self._vectors)
        return Copies(groups, self.place_C) if groups else None

    def _rounded(self, k: int) -> Rounded | None:
        """Return the candidates of the first of two passes; None if one pass suffices."""
        kind = self._type(k)
        if kind == "float32":
            return None
        rounded = self._in_int8 if kind == "int8" else self._in_bfloat16
        # Some float32 numbers are too large for bfloat16, or their squares for a bound.
        return rounded if math.isfinite(rounded.length) else None

    def _type(self, k: int) -> FirstPass:
        """Return the type of the first pass."""
        return self._cheapest(k) if self._first_pass == "auto" else self._first_pass

    def _cheapest(self, k: int) -> FirstPass:
        count, numbers = len(self.ids), len(self.ids) * self._width
        # Not in memory, or too many for a GPU: then a rounded copy of all may not fit either.
        small = count < _LEAST_CANDIDATES if self._on_host else count <= MOST_CANDIDATES
        if small or self._width < _LEAST_WIDTH or not self._vectors.in_reach:
            return "float32"
        in_half = multiplies_bfloat16(self.device)
        if not self._on_host:
            return "bfloat16" if in_half and numbers >= _NUMBERS_ON_GPU * k else "float32"
        kinds: list[tuple[FirstPass, bool]] = [("int8", multiplies_bytes()), ("bfloat16", in_half)]
        for kind, fast in kinds:
            if fast and numbers >= _NUMBERS[kind] * k and count >= _CANDIDATES[kind] * k:
                return kind
        return "float32"

    @cached_property
    def _in_int8(self) -> ByteVectors:
        return ByteVectors.of(self._vectors)

    @cached_property
    def _in_bfloat16(self) -> HalfVectors:
        return HalfVectors.of(self._vectors)
