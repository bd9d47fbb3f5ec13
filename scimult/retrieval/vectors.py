"""Embeddings as vectors whose inner product ranks them, by block and by row.

Shape legend: Q queries, C candidates, D width, B candidates of one block, P pairs, N vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.errors import DataError
from scimult.hardware import free_memory, may_compile_kernels, send
from scimult.listed_products import products_at
from scimult.retrieval.embeddings import LONGEST, SHORTEST
from scimult.retrieval.selection import check_finite
from scimult.types import FloatArray, IntArray, Similarity

_SOME = 1 << 12
_BLOCK = 1 << 12
# Pairs, or their candidates, gathered at once: few enough for a processor's cache.
_GATHERED = 1 << 10
# The same on a GPU, which launches kernels for each lot.
_GATHERED_ON_GPU = 1 << 14
_SHARE_OF_MEMORY = 0.7


@dataclass(frozen=True)
class Block:
    """Vectors of some candidates, shape ``(B, D)``.

    Their products are to be multiplied by a scale and added to a bias, where there is one.
    """

    vectors_BD: Tensor
    bias_B: Tensor | None
    scale_B: Tensor | None

    @property
    def scaled_BD(self) -> Tensor:
        """The vectors themselves, scaled."""
        return self.vectors_BD if self.scale_B is None else self.vectors_BD * self.scale_B[:, None]


class Vectors:
    """Candidates for one similarity, on one device.

    Every method raises a ``DataError`` if a number that it reads is not finite.
    """

    def __init__(
        self, embeddings_CD: FloatArray, similarity: Similarity, device: torch.device
    ) -> None:
        # Tensors have this machine's byte order and at most eight bytes a number.
        if not embeddings_CD.dtype.isnative or embeddings_CD.dtype.itemsize > 8:
            embeddings_CD = embeddings_CD.astype(np.float32)
        self._embeddings_CD, self._similarity = embeddings_CD, similarity
        self.shape, self.device = embeddings_CD.shape, device
        # The first rows, up to here, were checked to be finite.
        self._checked = 0
        self.in_memory = not _is_mapped(embeddings_CD)
        direct = self.in_memory and _is_shareable(embeddings_CD)
        self._matrix_CD = torch.from_numpy(embeddings_CD) if direct else None
        # On a host candidates are multiplied as they are, and what that leaves to be done for each,
        # a scale or a bias, is computed when it is first read; NaN until then.
        self._numbers_C = torch.full((len(embeddings_CD),), torch.nan, dtype=torch.float32)
        # Not so if the cosine of one that was read needs more than a scale.
        self._as_given = True

    @property
    def in_reach(self) -> bool:
        """Whether the device reads all candidates from its own memory."""
        return self.in_memory if self.device.type == "cpu" else self._resident is not None

    def queries(self, queries_QD: FloatArray) -> Tensor:
        """Return the vectors of queries, shape ``(Q, D)``; refuse another width."""
        width = self._embeddings_CD.shape[1]
        if queries_QD.ndim != 2 or queries_QD.shape[1] != width:
            problem = f"queries of shape {queries_QD.shape} against candidates of width {width}"
            raise DataError(problem, fix="encode queries and candidates with the same model")
        x_QD = _shared(queries_QD.astype(np.float32, copy=False))
        check_finite(x_QD, "a query embedding")
        if self._similarity == "cosine":
            x_QD = unit_vectors(x_QD)
        return self._centred(x_QD.to(self.device))

    def block(self, first: int, last: int) -> Block:
        """Return the candidates of rows ``[first, last)``."""
        rows = slice(first, last)
        if self._resident is not None:
            return _part(self._resident, rows)
        return self._read(rows)

    def rows(self, rows_P: IntArray | Tensor) -> Block:
        """Return the candidates of these rows."""
        if self._resident is not None:
            return _part(self._resident, torch.as_tensor(rows_P, device=self.device))
        return self._as_block(self.stored(rows_P).to(self.device), torch.as_tensor(rows_P))

    def stored(self, rows_P: IntArray | Tensor) -> Tensor:
        """Return the embeddings of these rows as they were given, float32 on the host."""
        if self._matrix_CD is not None:
            x_PD = self._matrix_CD.index_select(0, torch.as_tensor(rows_P, device="cpu"))
        else:
            x_PD = torch.from_numpy(self._embeddings_CD[np.asarray(rows_P)])
        x_PD = x_PD.to(torch.float32)
        if self._checked < len(self._embeddings_CD):
            check_finite(x_PD, "a candidate embedding")
        return x_PD

    def products_of(self, queries_QD: Tensor, query_P: Tensor, rows_P: Tensor) -> Tensor:
        """Return the float32 products of listed queries and candidates, shape ``(P,)``.

        Each product depends on its two vectors alone, whatever else is listed. Products are where
        the lists are, which may be on the host.
        """
        if self.device.type != "cpu":
            return self._gathered_products(queries_QD, query_P, rows_P)
        # Read candidates in memory order.
        order_P = rows_P.argsort()
        sorted_P, query_P = rows_P[order_P], query_P[order_P]
        if self.whole is not None:
            products_P = products_at(self.whole, queries_QD, sorted_P, query_P)
            if self._similarity == "cosine":
                products_P *= self._numbers_C[sorted_P]
            elif self._similarity == "l2":
                products_P += self._numbers_C[sorted_P]
        else:
            rows_U, counts_U = torch.unique_consecutive(sorted_P, return_counts=True)
            products_P = torch.empty(len(rows_P), dtype=torch.float32)
            first = 0
            for some_U, some in zip(
                rows_U.split(_GATHERED), counts_U.split(_GATHERED), strict=True
            ):
                block, at = self.rows(some_U), torch.arange(len(some_U)).repeat_interleave(some)
                pairs = slice(first, first + len(at))
                vectors_UD = block.vectors_BD
                products_P[pairs] = products_at(vectors_UD, queries_QD, at, query_P[pairs])
                if block.scale_B is not None:
                    products_P[pairs] *= block.scale_B[at]
                if block.bias_B is not None:
                    products_P[pairs] += block.bias_B[at]
                first = pairs.stop
        scores_P = torch.empty_like(products_P)
        scores_P[order_P] = products_P
        return scores_P

    def sample(self) -> Tensor:
        """Return the vectors of a sample from all over the array."""
        return self.rows(self._spread_rows()).scaled_BD

    @property
    def whole(self) -> Tensor | None:
        """All candidates, if the array can be multiplied as it is and was checked; else None."""
        matrix_CD, seen = self._matrix_CD, self._checked == len(self._embeddings_CD)
        if matrix_CD is None or matrix_CD.dtype != torch.float32 or not (seen and self._as_given):
            return None
        return matrix_CD if self._similarity != "l2" or self._centre_D is None else None

    def _gathered_products(self, queries_QD: Tensor, query_P: Tensor, rows_P: Tensor) -> Tensor:
        asked_on, resident = rows_P.device, self._resident
        # Those that the device does not keep are read by the host.
        if asked_on.type == "cpu":
            sent_P, query_P = send([rows_P, query_P], self.device)
            rows_P = rows_P if resident is None else sent_P
        elif resident is None:
            rows_P = rows_P.cpu()
        if resident is not None and _multiplies_pairs(self.device, self.shape[1]):
            from scimult.retrieval.pair_kernel import products_of_pairs

            parts = resident.vectors_BD, resident.bias_B, queries_QD.contiguous(), query_P, rows_P
            return products_of_pairs(*parts).to(asked_on)
        # Lots of one size: a kernel's order of summation may depend on it.
        pairs, lot = len(rows_P), _GATHERED_ON_GPU
        rows_P, query_P = (
            torch.nn.functional.pad(x_P, (0, -pairs % lot)) for x_P in (rows_P, query_P)
        )
        scores = [torch.empty(0, dtype=torch.float32, device=self.device)]
        for some_P, queries_P in zip(
            torch.split(rows_P, lot), torch.split(query_P, lot), strict=True
        ):
            block = self.rows(some_P)
            products_P = (block.scaled_BD * queries_QD[queries_P]).sum(dim=1)
            scores.append(products_P if block.bias_B is None else products_P + block.bias_B)
        return torch.cat(scores).to(asked_on)[:pairs]

    @cached_property
    def _resident(self) -> Block | None:
        """All candidates on a GPU, if they fit together with their rounded copy."""
        if self.device.type == "cpu":
            return None
        if 6 * self._embeddings_CD.size > _SHARE_OF_MEMORY * free_memory(self.device):
            return None
        count, width = self._embeddings_CD.shape
        vectors_CD = torch.empty(count, width, dtype=torch.float32, device=self.device)
        biases = []
        for first in range(0, count, _BLOCK):
            block = self._read(slice(first, min(first + _BLOCK, count)))
            vectors_CD[first : first + _BLOCK] = block.vectors_BD
            if block.bias_B is not None:
                biases.append(block.bias_B)
        return Block(vectors_CD, torch.cat(biases) if biases else None, None)

    @cached_property
    def _centre_D(self) -> Tensor | None:
        """The mean of a sample of the candidates: any point between them will do.

        None where it is nearer to zero than candidates are to it: subtracting it would then save
        less than one bit, and cost a pass over all candidates in every search.
        """
        some_ND = torch.from_numpy(self._embeddings_CD[self._spread_rows()].astype(np.float32))
        check_finite(some_ND, "a candidate embedding")
        centre_D = some_ND.mean(dim=0)
        spread = (some_ND - centre_D).square().sum(dim=1).mean()
        return None if centre_D.square().sum() <= spread else centre_D.to(self.device)

    def _centred(self, x_ND: Tensor) -> Tensor:
        centre_D = self._centre_D if self._similarity == "l2" else None
        return x_ND if centre_D is None else x_ND - centre_D

    def _spread_rows(self) -> IntArray:
        count = len(self._embeddings_CD)
        return np.linspace(0, count - 1, min(count, _SOME)).astype(np.int64)

    def _read(self, rows: slice) -> Block:
        if self._matrix_CD is not None:
            x_BD = self._matrix_CD[rows]
        else:
            x_BD = _shared(self._embeddings_CD[rows])
        x_BD = x_BD.to(self.device, torch.float32)
        if rows.stop > self._checked:
            check_finite(x_BD, "a candidate embedding")
        block = self._as_block(x_BD, rows)
        # Last: other threads then multiply these rows by their numbers.
        if rows.start <= self._checked:
            self._checked = max(self._checked, rows.stop)
        return block

    def _as_block(self, x_BD: Tensor, rows: slice | Tensor) -> Block:
        x_BD = self._centred(x_BD)
        if self._similarity == "dot":
            return Block(x_BD, None, None)
        if self.device.type != "cpu":
            # What a device keeps is scaled once; fewer operations follow.
            if self._similarity == "cosine":
                return Block(unit_vectors(x_BD), None, None)
            return Block(x_BD, _bias(x_BD), None)
        numbers_B = self._numbers_C[rows]
        if numbers_B.isnan().any():
            numbers_B = _bias(x_BD) if self._similarity == "l2" else _unit_scales(x_BD)
            self._numbers_C[rows] = numbers_B
        if self._similarity == "l2":
            return Block(x_BD, numbers_B, None)
        odd_B = numbers_B < 0
        if odd_B.any():
            self._as_given = False
            x_BD = x_BD.clone()
            x_BD[odd_B] = unit_vectors(x_BD[odd_B])
            numbers_B = numbers_B.masked_fill(odd_B, 1.0)
        return Block(x_BD, None, numbers_B)


@cache
def _multiplies_pairs(device: torch.device, width: int) -> bool:
    """Return whether a kernel for listed pairs works: Triton compiles it here, which may fail."""
    if not may_compile_kernels(device):
        return False
    try:
        from scimult.retrieval import pair_kernel

        if width > pair_kernel.LONGEST:
            return False
        one_1D = torch.ones(1, width, dtype=torch.float32, device=device)
        first_1 = torch.zeros(1, dtype=torch.int64, device=device)
        pair_kernel.products_of_pairs(one_1D, None, one_1D, first_1, first_1).cpu()
    # A missing compiler, missing headers, a full disk: each has an exception of its own.
    except Exception:
        return False
    return True


def check_array(embeddings: object, name: str) -> None:
    """Refuse what is no numpy array, such as a list or a tensor.

    Raises
    ------
    DataError
        With how to make an array of it.
    """
    if not isinstance(embeddings, np.ndarray):
        problem = f"{name} are not a numpy array, but of type {type(embeddings).__name__}"
        is_tensor = isinstance(embeddings, Tensor)
        array = "x.numpy(force=True)" if is_tensor else "numpy.asarray(x, dtype='float32')"
        raise DataError(problem, fix=f"pass {array}, with x for what you passed")


def unit_vectors(x_ND: Tensor) -> Tensor:
    """Return float32 vectors scaled to length 1; zeros stay zeros."""
    lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    if _all_in_range(lengths_N):
        scaled_ND: Tensor = x_ND / lengths_N[:, None]
        return scaled_ND
    largest_N = x_ND.abs().amax(dim=1)
    divided_N = _odd(lengths_N) & (largest_N > 0)
    x_ND = x_ND / torch.where(divided_N, largest_N, 1.0)[:, None]
    lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    return x_ND / torch.where(lengths_N > 0, lengths_N, 1.0)[:, None]


def _unit_scales(x_ND: Tensor) -> Tensor:
    """Return what scales vectors to length 1, shape ``(N,)``: 0 for zeros.

    -1 stands for vectors that no one float32 number scales, which need `unit_vectors`.
    """
    lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    scales_N: Tensor = 1 / lengths_N
    if not _all_in_range(lengths_N):
        odd_N = _odd(lengths_N)
        scales_N[odd_N] = -x_ND[odd_N].any(dim=1).float()
    return scales_N


def _all_in_range(lengths_N: Tensor) -> bool:
    """Return whether no length is `_odd`, in fewer operations."""
    if not lengths_N.numel():
        return True
    least, most = torch.aminmax(lengths_N)
    return least.item() >= SHORTEST and most.item() <= LONGEST


def _odd(lengths_N: Tensor) -> Tensor:
    """Return which lengths are out of range, also NaN."""
    return ~((lengths_N >= SHORTEST) & (lengths_N <= LONGEST))


def _bias(x_BD: Tensor) -> Tensor:
    """Return minus half of the squared lengths, shape ``(B,)``."""
    return -0.5 * x_BD.square().sum(dim=1)


def _part(block: Block, rows: slice | Tensor) -> Block:
    bias_B = None if block.bias_B is None else block.bias_B[rows]
    return Block(block.vectors_BD[rows], bias_B, None)


def _is_shareable(array: FloatArray) -> bool:
    """Return whether a tensor can use an array's memory; one row backwards counts as contiguous."""
    flags = array.flags
    return flags.c_contiguous and flags.writeable and min(array.strides) >= 0


def _shared(array: FloatArray) -> Tensor:
    """Return an array as a tensor, copied only where it must be."""
    return torch.from_numpy(array if _is_shareable(array) else array.copy())


def _is_mapped(array: FloatArray) -> bool:
    """Return whether an array, or what it is a view of, is a memory-mapped file."""
    part: object = array
    while isinstance(part, np.ndarray) and not isinstance(part, np.memmap):
        part = part.base
    return isinstance(part, np.memmap)
