"""Exact maximum inner product search over dense embeddings.

Blocks of candidates are multiplied into one reused buffer, each block's best are kept and
merged as tensors, and ids are mapped last. Memory is one buffer of ``query_rows`` ×
``block_rows`` scores beside the embeddings and the result, whatever the collection's size.

Candidates are visited by descending id and every selection is stable, so equal float32 scores
come out in the order of :mod:`scimult.retrieval.runs`, wherever the blocks are cut.

Shape legend: Q queries, C candidates, D width, K results per query, B candidates of one block,
P listed (query, candidate) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.progress import progress
from scimult.retrieval.runs import Ranking, id_order, places_of, ranking_of_pairs
from scimult.types import FloatArray, IntArray, Similarity

_TIED_ROWS = 64
# Pairs of embeddings that are multiplied at once: few enough for a processor's cache.
_PAIRS = 1 << 12
_CHECKED = 1 << 14
_CENTRED = 1 << 12


class ExactIndex:
    """Candidates that can be searched by dot product, cosine or Euclidean distance.

    Parameters
    ----------
    ids : sequence of str
        One distinct id per candidate; they break ties.
    embeddings_CD : array
        Shape ``(C, D)``, floating point; may be memory-mapped and of half precision, products
        are taken in float32.
    similarity : {"dot", "cosine", "l2"}
        ``l2`` ranks by Euclidean distance through ``[q, 1] · [d, −‖d‖²/2]`` after a point
        between the candidates was subtracted from q and d, so that what all have in common
        takes no digits; its scores are that product, which differs from ``−‖q − d‖²/2`` by a
        constant per query. The cosine with a zero vector is 0.
    device : torch.device or str
        Where the products are taken.
    query_rows, block_rows : int
        Size of the buffer of scores.

    Raises
    ------
    DataError
        If ids repeat, there is not one per row, or the array is not a matrix.
    """

    def __init__(
        self,
        ids: Sequence[str],
        embeddings_CD: FloatArray,
        similarity: Similarity,
        *,
        device: torch.device | str = "cpu",
        query_rows: int = 1024,
        block_rows: int = 16384,
    ) -> None:
        if embeddings_CD.ndim != 2 or len(ids) != len(embeddings_CD) or not len(ids):
            raise DataError(
                f"{len(ids)} candidate ids for embeddings of shape {embeddings_CD.shape}",
                fix="pass one row of equal width per id, and at least one",
            )
        self.ids, self.similarity = ids, similarity
        self.embeddings_CD, self.device = embeddings_CD, torch.device(device)
        self.order_C = id_order(ids)
        self.place_C = places_of(self.order_C)
        self.query_rows, self.block_rows = query_rows, min(block_rows, len(ids))

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
            Length of the lists.
        exclude_Q : IntArray, optional
            One candidate row per query to leave out of its list; -1 for none.

        Raises
        ------
        DataError
            If widths differ, an embedding or a product is not finite, or ``k`` is negative.
        """
        queries = self._queries(queries_QD)
        best = TopK(len(queries), min(k, len(self.ids)), self.device)
        excluded = None
        if exclude_Q is not None:
            excluded = torch.from_numpy(np.where(exclude_Q < 0, -1, self.place_C[exclude_Q]))
        buffer = torch.empty(self.query_rows * self.block_rows, device=self.device)
        starts = range(0, len(self.ids), self.block_rows)
        for first in progress(starts, "search", unit="block", show=show_progress):
            block_BD = self._candidates(self.order_C[first : first + self.block_rows])
            for start in range(0, len(queries), self.query_rows):
                part_QD = queries[start : start + self.query_rows]
                shape = len(part_QD), len(block_BD)
                scores_QB = buffer[: shape[0] * shape[1]].view(shape)
                torch.mm(part_QD, block_BD.T, out=scores_QB)
                if excluded is not None:
                    _leave_out(scores_QB, excluded[start : start + len(part_QD)] - first)
                best.add(start, first, scores_QB)
        return best.ranking(self.order_C)

    def rank_listed(self, queries_QD: FloatArray, lists: Ragged) -> Ranking:
        """Rank, for each query, only the candidate rows that ``lists`` gives it.

        Raises
        ------
        DataError
            If widths differ or an embedding or a product is not finite.
        """
        queries = self._queries(queries_QD)
        query_P = lists.owners
        # Written in place: small results between large ones would keep the heap from shrinking.
        scores_P = np.empty(len(query_P), dtype=np.float32)
        for start in range(0, len(query_P), _PAIRS):
            pairs = slice(start, start + _PAIRS)
            rows_PD = self._candidates(lists.values[pairs])
            part_PD = queries[torch.from_numpy(query_P[pairs])]
            scores_P[pairs] = (part_PD * rows_PD).sum(dim=1).cpu().numpy()
        _check_finite(torch.from_numpy(scores_P), "a product of two embeddings")
        return ranking_of_pairs(query_P, lists.values, scores_P, len(lists), self.place_C)

    def _queries(self, queries_QD: FloatArray) -> Tensor:
        if queries_QD.ndim != 2 or queries_QD.shape[1] != self.embeddings_CD.shape[1]:
            raise DataError(
                f"query embeddings of shape {queries_QD.shape} against candidates of width "
                f"{self.embeddings_CD.shape[1]}",
                fix="encode queries and candidates with the same model",
            )
        x_QD = self._float32(queries_QD, "a query embedding")
        if self.similarity == "cosine":
            return torch.nn.functional.normalize(x_QD, dim=1)
        if self.similarity == "l2":
            return torch.cat([x_QD - self._centre_D, x_QD.new_ones(len(x_QD), 1)], dim=1)
        return x_QD

    def _candidates(self, rows_B: IntArray) -> Tensor:
        x_BD = self._float32(self.embeddings_CD[rows_B], "a candidate embedding")
        if self.similarity == "cosine":
            return torch.nn.functional.normalize(x_BD, dim=1)
        if self.similarity == "l2":
            x_BD = x_BD - self._centre_D
            return torch.cat([x_BD, -0.5 * x_BD.square().sum(dim=1, keepdim=True)], dim=1)
        return x_BD

    @cached_property
    def _centre_D(self) -> Tensor:
        """The mean of the candidates, or of some all over the array: any point will do."""
        some = np.linspace(0, len(self.ids) - 1, min(len(self.ids), _CENTRED)).astype(np.int64)
        return self._float32(self.embeddings_CD[some], "a candidate embedding").mean(dim=0)

    def _float32(self, x_ND: FloatArray, what: str) -> Tensor:
        x = torch.from_numpy(np.require(x_ND, np.float32, ["C", "W"])).to(self.device)
        _check_finite(x, what)
        return x


class TopK:
    """The best K of candidates that arrive block by block.

    Among equal scores the candidate that arrived first stays first; a score of -inf is never
    kept. Any scorer that can fill a block (a matrix product, BM25) shares this selection.

    Raises
    ------
    DataError
        If ``k`` is negative.
    """

    def __init__(self, n_queries: int, k: int, device: torch.device | str = "cpu") -> None:
        if k < 0:
            fix = "ask for 0 results or more"
            raise DataError("length of a list is negative", value=k, fix=fix)
        self.scores_QK = torch.full((n_queries, k), -torch.inf, device=device)
        self.places_QK = torch.full((n_queries, k), -1, dtype=torch.long, device=device)

    def add(self, first_query: int, first_candidate: int, scores_QB: Tensor) -> None:
        """Merge the scores of one block of candidates for one block of queries.

        Raises
        ------
        DataError
            If one of the best scores is not a finite number.
        """
        rows = slice(first_query, first_query + len(scores_QB))
        k = self.scores_QK.shape[1]
        scores, places = stable_top_k(scores_QB, k)
        scores = torch.cat([self.scores_QK[rows], scores], dim=1)
        places = torch.cat([self.places_QK[rows], places + first_candidate], dim=1)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        self.scores_QK[rows] = scores[:, :k]
        self.places_QK[rows] = places.gather(1, order[:, :k])

    def ranking(self, order_C: IntArray) -> Ranking:
        """Return the lists, with places in order of arrival mapped to candidate rows."""
        scores_QK, places_QK = self.scores_QK.cpu().numpy(), self.places_QK.cpu().numpy()
        rows_QK = np.where(np.isneginf(scores_QK), -1, order_C[places_QK])
        return Ranking(rows_QK, scores_QK)


def stable_top_k(scores_QB: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the best ``k`` scores of each row and their columns; ties in order of column.

    ``torch.topk`` chooses freely among equal scores. One more result than asked for shows the
    rows where that choice matters; only those are sorted whole.

    Raises
    ------
    DataError
        If one of the best scores is NaN or infinite.
    """
    if scores_QB.shape[1] <= k:
        scores, columns = scores_QB.sort(dim=1, descending=True, stable=True)
        _check_scores(scores)
        return scores, columns
    scores, columns = scores_QB.topk(k + 1, dim=1)
    _check_scores(scores)
    tied = (scores[:, k - 1] == scores[:, k]) & ~scores[:, k].isneginf()
    columns, order = columns[:, :k].sort(dim=1)
    scores, by_score = scores[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, by_score)
    for rows in torch.split(tied.nonzero().flatten(), _TIED_ROWS):
        exact_scores, exact_columns = scores_QB[rows].sort(dim=1, descending=True, stable=True)
        scores[rows], columns[rows] = exact_scores[:, :k], exact_columns[:, :k]
    return scores, columns


def _leave_out(scores_QB: Tensor, columns_Q: Tensor) -> None:
    """Set one column per row to -inf where it lies inside the block."""
    rows = ((columns_Q >= 0) & (columns_Q < scores_QB.shape[1])).nonzero().flatten()
    scores_QB[rows.to(scores_QB.device), columns_Q[rows].to(scores_QB.device)] = -torch.inf


def _check_scores(scores: Tensor) -> None:
    """Refuse NaN and +inf, which sort first, so looking at the best is enough."""
    if scores.numel() and not (scores < torch.inf).all():
        _check_finite(scores[~(scores < torch.inf)], "a score")


def _check_finite(values: Tensor, what: str) -> None:
    # In blocks, because torch makes copies of what it looks at.
    if all(bool(block.isfinite().all()) for block in torch.split(values, _CHECKED)):
        return
    bad = ~values.isfinite()
    raise DataError(
        f"{what} is not finite in {int(bad.sum())} of {values.numel()} numbers",
        value=float(values[bad][0]),
        fix="check the model: its weights or activations overflowed",
    )
