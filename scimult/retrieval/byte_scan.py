"""Exact search for up to four queries among many candidates on a CPU, whose first pass reads bytes.

So few queries are bound by memory, and a byte is a quarter of a float32 number. Candidates, less a
point between them, are steps of one size in a byte each, which faiss multiplies as integers; its
best are multiplied again as they are. Rounding is randomised, and its error bounded, as in
`scimult.retrieval.rounded.ByteVectors`, but for the one step of all candidates, so that no term of
its own is to be added to a candidate's sum.

Shape legend: Q queries, C candidates, D width, B candidates of one block, K results per query,
W candidates kept of a query.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scimult.listed_products import faiss_with_our_threads, may_use_faiss
from scimult.products import FEW, multiplies_few_by_onednn
from scimult.retrieval.few_on_device import settled
from scimult.retrieval.rounded import (
    LARGEST,
    SINGLE,
    SURE,
    dither,
    lengths_of,
    vectors_by_block,
)
from scimult.retrieval.runs import Ranking
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray

# Numbers from which reading bytes is faster, and candidates per result: fewer are close together.
_NUMBERS, _CANDIDATES = 1 << 24, 100
# Of shorter vectors few products are a first pass, of which bounds allow for rounding.
_LEAST_WIDTH = 64
# A query is read by one thread, while all read a matrix.
_THREADS_PER_QUERY = 2
# Of the first pass, for each result and beside: one in a hundred lists needs more.
_PER_RESULT, _SPARE = 4, 64
# Lists in a row that needed another search.
_MOST_MISSES = 8
# No sum of products overflows below this error.
_MOST_ERROR = 1e30
_TINY = float(np.finfo(np.float32).tiny)


class ByteScan:
    """All candidates in bytes.

    Parameters
    ----------
    vectors : Vectors
        The candidates, without biases.
    place_C : IntArray
        Positions of candidates among equal scores.
    """

    def __init__(self, vectors: Vectors, place_C: IntArray) -> None:
        self._vectors, self._place_C = vectors, place_C
        width, self._misses = vectors.shape[1], 0
        self._centre_D, self._dither_D = vectors.sample().mean(dim=0), dither(width, 0)
        self._query_dither_D = dither(width, 1)
        largest = length = spread = 0.0
        for _, vectors_BD, _ in vectors_by_block(vectors):
            x_BD = vectors_BD - self._centre_D
            largest = max(largest, float(x_BD.abs().max()))
            length = max(length, float(lengths_of(vectors_BD).max()))
            spread = max(spread, float(lengths_of(x_BD).max()))
        self._step = max(largest / LARGEST, _TINY)
        # Rounding adds half a step at most in each dimension.
        self._length, self._spread = length, spread + 0.5 * width**0.5 * self._step
        with faiss_with_our_threads() as library:
            kind = library.ScalarQuantizer.QT_8bit_direct_signed
            self._index = library.IndexScalarQuantizer(width, kind, library.METRIC_INNER_PRODUCT)
            for _, vectors_BD, _ in vectors_by_block(vectors):
                x_BD = (vectors_BD - self._centre_D).div_(self._step)
                self._index.add(x_BD.add_(self._dither_D).round_().numpy())

    @staticmethod
    def suits(vectors: Vectors, queries: int, k: int) -> bool:
        """Return whether this is the fastest search, once it is made."""
        count, width = vectors.shape
        return (
            0 < queries <= FEW
            and width >= _LEAST_WIDTH
            and count * width >= _NUMBERS
            and count >= _CANDIDATES * k
            and vectors.whole is not None
            and torch.get_num_threads() <= _THREADS_PER_QUERY * queries
            and may_use_faiss()
            and multiplies_few_by_onednn()
        )

    @property
    def is_useful(self) -> bool:
        """Whether lists rarely need another search: not where one number exceeds all others."""
        return self._misses < _MOST_MISSES

    def search(self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None) -> Ranking | None:
        """Search like `ExactIndex.search`; queries are `Vectors.queries`, ``k`` is at least 1.

        None if more candidates are too close to the last result to tell apart than are kept.
        """
        steps_Q = (queries_QD.abs().amax(dim=1) / LARGEST).clamp_min(_TINY)
        error_Q = self._error_of(queries_QD, steps_Q).numpy()
        if not (error_Q < _MOST_ERROR).all():
            return None
        rough_QW, rows_QW = self._first_pass(queries_QD, steps_Q, k)
        if exclude_Q is not None:
            rough_QW[rows_QW == exclude_Q[:, None]] = -np.inf
        # One that is left out makes room for another.
        last_Q1 = rough_QW[:, [min(k, rough_QW.shape[1] - 1)]] - 2 * error_Q[:, None]
        width = int((rough_QW >= last_Q1).sum(axis=1).max()) + 1
        rough_QW, rows_QW = rough_QW[:, :width], np.ascontiguousarray(rows_QW[:, :width])
        owners_P = torch.arange(len(rows_QW)).repeat_interleave(rows_QW.shape[1])
        exact_P = self._vectors.products_of(
            queries_QD, owners_P, torch.from_numpy(rows_QW.reshape(-1))
        )
        exact_QW = exact_P.view(rows_QW.shape).numpy()
        ranking = settled(rough_QW, exact_QW, rows_QW, error_Q, self._place_C, k, exclude_Q)
        self._misses = self._misses + 1 if ranking is None else 0
        return ranking

    def _first_pass(
        self, queries_QD: Tensor, steps_Q: Tensor, k: int
    ) -> tuple[FloatArray, IntArray]:
        """Return rough scores, descending, and their rows."""
        codes_QD = (queries_QD / steps_Q[:, None]).add_(self._query_dither_D).round_()
        kept = min(_PER_RESULT * k + _SPARE, len(self._place_C))
        with faiss_with_our_threads():
            sums_QW, rows_QW = self._index.search(codes_QD.numpy(), kept)
        unit_Q1 = (steps_Q * self._step)[:, None].numpy()
        shifts_Q1 = (queries_QD @ self._centre_D)[:, None].numpy()
        dithers_Q1 = (codes_QD @ self._dither_D)[:, None].numpy()
        return (sums_QW - dithers_Q1) * unit_Q1 + shifts_Q1, rows_QW

    def _error_of(self, queries_QD: Tensor, steps_Q: Tensor) -> Tensor:
        """Bound how far a rough product is from the float32 one, shape ``(Q,)``."""
        width, lengths_Q = queries_QD.shape[1], lengths_of(queries_QD)
        rounded_Q = torch.hypot(self._step * lengths_Q / 12**0.5, steps_Q * self._spread / 2)
        products_Q = lengths_Q * (self._length + self._spread)
        error_Q = SURE * rounded_Q + 4 * width * SINGLE * products_Q
        bound_Q: Tensor = 1.001 * error_Q + width * 2.0**-120 * (1 + lengths_Q + self._length)
        return bound_Q
