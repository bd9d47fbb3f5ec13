"""Passes over all candidates, block by block, until the best of every query are known.

A pass over rounded candidates keeps whatever its error cannot rule out, and multiplies that in
float32; a list with too many of those waits for the next, more precise pass.

Shape legend: Q queries, C candidates, D width, K results per query, B candidates of one block,
W candidates of a query that are multiplied in float32, P listed (query, candidate) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.hardware import full_precision_products
from scimult.retrieval.block_scores import BlockScores, whole_groups
from scimult.retrieval.few_on_device import FEW_RESULTS
from scimult.retrieval.rounded import Operand, Rounded, SingleVectors
from scimult.retrieval.selection import (
    NO_KEY,
    FixedBest,
    ThresholdBest,
    check_finite,
    keys_of,
    leave_out,
    lists_of,
    places_of_keys,
    scores_of,
    sorted_keys,
)
from scimult.retrieval.vectors import Vectors
from scimult.types import BoolArray, FloatArray, IntArray

# Queries and candidates whose scores stay in a processor's cache, or fill a GPU.
_CPU_BLOCK, _CUDA_BLOCK = (256, 1 << 12), (1024, 1 << 18)
# For few queries longer blocks: scores of one block, and its candidates, at most.
_CPU_FEW, _CUDA_FEW = (1 << 19, 1 << 16), (1 << 28, 1 << 21)


@dataclass(frozen=True)
class Work:
    """Queries searched together.

    Attributes
    ----------
    queries_QD : Tensor
        Vectors of the queries, on the device.
    excluded_Q : IntArray
        A candidate row to leave out for each; -1 for none.
    k : int
        Results per query.
    """

    queries_QD: Tensor
    excluded_Q: IntArray
    k: int


@dataclass(frozen=True)
class Found:
    """Lists of some queries.

    Attributes
    ----------
    queries_P : IntArray
        Numbers of the queries, shape ``(P,)``.
    rows_PK, scores_PK : array
        Candidates, best first, and their scores; -1 and -inf beyond the end of a list.
    by_pairs : bool
        Whether each score depends on its two vectors alone.
    """

    queries_P: IntArray
    rows_PK: IntArray
    scores_PK: FloatArray
    by_pairs: bool


class Passes:
    """Passes over the candidates of an index.

    Parameters
    ----------
    vectors : Vectors
        The candidates.
    order_C, place_C : IntArray
        Candidates by position among equal scores, and the positions of candidates.
    on_host : bool
        Whether scores are computed on the host.
    query_rows, block_rows : int, optional
        Size of the buffer of scores; default: what suits the device.
    """

    def __init__(
        self,
        vectors: Vectors,
        order_C: IntArray,
        place_C: IntArray,
        *,
        on_host: bool,
        query_rows: int | None,
        block_rows: int | None,
    ) -> None:
        self._vectors, self._on_host = vectors, on_host
        self._order_C, self._place_C = order_C, place_C
        usual = (_CPU_BLOCK, _CPU_FEW) if on_host else (_CUDA_BLOCK, _CUDA_FEW)
        (rows, self._usual_block), self._few_scores = usual
        self._query_rows, self._block_rows = query_rows or rows, block_rows

    def block_rows(self, n_queries: int) -> int:
        """Return how many candidates are multiplied at once for ``n_queries`` queries."""
        scores, longest = self._few_scores
        few = min(scores // max(1, n_queries), longest)
        return min(self._block_rows or max(self._usual_block, few), len(self._order_C))

    def lists(
        self, work: Work, rounded: Rounded | None, advance: Callable[[int], object]
    ) -> Iterator[Found]:
        """Yield all lists, those of the first pass first.

        ``rounded`` are the candidates of a first pass that another one follows.

        Raises
        ------
        DataError
            If a score that would be listed is not finite.
        """
        attempts: list[tuple[Rounded | None, bool]] = [(rounded, self._on_host)]
        # Where too many candidates are too close to the last result to tell apart, float32
        # separates most; scores that are all but equal are ordered by one final product.
        if rounded is not None:
            attempts.append((SingleVectors(self._vectors, rounded.length), self._on_host))
        attempts.append((None, True))
        parts = self._parts(np.arange(len(work.queries_QD)))
        for vectors, select_on_host in attempts:
            unsettled = []
            results = self._pass(work, parts, vectors, select_on_host, advance)
            for rows_P, (keys_PW, open_P) in zip(parts, results, strict=True):
                settled_P = ~open_P
                if settled_P.any():
                    some = slice(None) if settled_P.all() else torch.from_numpy(settled_P)
                    lists = self._rows_and_scores(keys_PW[some], work.k)
                    yield Found(rows_P[settled_P], *lists, by_pairs=vectors is not None)
                unsettled.append(rows_P[open_P])
            parts = self._parts(np.concatenate(unsettled))
            if not parts:
                return

    def _parts(self, numbers_Q: IntArray) -> list[IntArray]:
        """Cut queries into parts that share a buffer of scores."""
        rows = self._query_rows
        return [numbers_Q[i : i + rows] for i in range(0, len(numbers_Q), rows)]

    def _rows_and_scores(self, keys_PW: Tensor, k: int) -> tuple[IntArray, FloatArray]:
        scores_PK, places_PK = lists_of(keys_PW, k)
        rows_PK = self._order(scores_PK.device)[places_PK].masked_fill_(places_PK < 0, -1)
        return rows_PK.cpu().numpy(), scores_PK.cpu().numpy()

    def _pass(
        self,
        work: Work,
        parts: list[IntArray],
        rounded: Rounded | None,
        select_on_host: bool,
        advance: Callable[[int], object],
    ) -> list[tuple[Tensor, BoolArray]]:
        """Pass over all candidates; return each part's keys, and which queries are still open."""
        queries = [work.queries_QD[torch.from_numpy(rows_P)] for rows_P in parts]
        few = sum(map(len, parts)) * max(1, work.k) <= FEW_RESULTS
        ends_on = "cpu" if select_on_host or few else self._vectors.device
        errors = [rounded.error_of(x.to(ends_on)) if rounded else None for x in queries]
        selections = [
            self._new_best(len(x_QD), work.k, error_Q, rounded, None if select_on_host else ends_on)
            for x_QD, error_Q in zip(queries, errors, strict=True)
        ]
        factors: list[Operand] = [rounded.queries(x) if rounded else x for x in queries]
        places_C = torch.from_numpy(self._place_C) if select_on_host else self._on_device[0]
        step = self.block_rows(sum(map(len, parts)))
        blocks = BlockScores(
            len(parts[0]) * whole_groups(step), self._vectors.device, on_host=self._on_host
        )
        with full_precision_products(self._vectors.device):
            for first in range(0, len(self._order_C), step):
                last = min(first + step, len(self._order_C))
                block = (self._vectors if rounded is None else rounded).block(first, last)
                for rows_P, factor, best in zip(parts, factors, selections, strict=True):
                    scores_QB = blocks.of(factor, block)
                    leave_out(scores_QB, work.excluded_Q[rows_P] - first)
                    scores_QB = scores_QB.cpu() if select_on_host else scores_QB
                    best.add(scores_QB, places_C[first:last])
                advance(last - first)
        results = []
        for x_QD, error_Q, best in zip(queries, errors, selections, strict=True):
            keys_QW, open_Q = best.keys(), best.open_queries()
            if rounded is not None and error_Q is not None and not open_Q.all():
                keys_QW, off_Q = self._settled(x_QD, keys_QW, error_Q, rounded)
                open_Q = open_Q | off_Q
            results.append((keys_QW, open_Q.cpu().numpy()))
        return results

    def _new_best(
        self,
        n_queries: int,
        k: int,
        error_Q: Tensor | None,
        rounded: Rounded | None,
        ends_on: str | torch.device | None,
    ) -> ThresholdBest | FixedBest:
        slack_Q = None if error_Q is None else 2 * error_Q
        rounding = 0.0 if rounded is None else rounded.rounding
        if ends_on is not None:
            return FixedBest(k, slack_Q=slack_Q, rounding=rounding, ends_on=ends_on)
        most = None if rounded is None else rounded.most_kept(k, len(self._order_C))
        return ThresholdBest(n_queries, k, slack_Q=slack_Q, rounding=rounding, most=most)

    def _settled(
        self, queries_QD: Tensor, keys_QW: Tensor, error_Q: Tensor, rounded: Rounded
    ) -> tuple[Tensor, Tensor]:
        """Return keys of float32 products; and where a rounded one was off beyond its bound."""
        some_QW, where = keys_QW != NO_KEY, keys_QW.device
        query_P = torch.arange(len(keys_QW), device=where).repeat_interleave(some_QW.sum(dim=1))
        keys_P = keys_QW[some_QW]
        rough_P, places_P = scores_of(keys_P), places_of_keys(keys_P)
        rough_P = rough_P + rounded.shift_of(queries_QD).to(where)[query_P]
        exact_P = self._vectors.products_of(queries_QD, query_P, self._order(where)[places_P])
        check_finite(exact_P, "a score")
        off_P = (rough_P - exact_P).abs() > error_Q[query_P] + 2 * rounded.rounding * rough_P.abs()
        off_QW = torch.zeros_like(some_QW).masked_scatter(some_QW, off_P)
        settled_QW = keys_QW.masked_scatter(some_QW, keys_of(exact_P, places_P))
        return sorted_keys(settled_QW), off_QW.any(dim=1)

    @cached_property
    def _on_device(self) -> tuple[Tensor, Tensor]:
        """Positions of candidates among equal ones, and candidates by position."""
        place_C, order_C = map(torch.from_numpy, (self._place_C, self._order_C))
        return place_C.to(self._vectors.device), order_C.to(self._vectors.device)

    def _order(self, where: torch.device) -> Tensor:
        return torch.from_numpy(self._order_C) if where.type == "cpu" else self._on_device[1]
