"""Candidates rounded to bfloat16 or int8, with error bounds of their products with queries.

Shape legend: Q queries, C candidates, D width, B candidates of one block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from scimult.products import ByteMatrix
from scimult.retrieval.vectors import Block, Vectors

SINGLE = 2.0**-24
"""Unit roundoff of float32."""

LARGEST = 126.5
"""The largest number of a code; rounding up after a dither of half a step stays below 128."""

SURE = 9.6
"""Standard deviations that one in 10^19 sub-Gaussian numbers exceeds: 2 exp(-9.6² / 2)."""

_BLOCK = 1 << 12
# Unit roundoff of bfloat16.
_HALF = 2.0**-8
# Squares below this one's may be lost from a float32 sum.
_LOST = 2.0**-63
_DITHER = 20230912
# At most one in this many candidates is kept.
_MOST_KEPT = 64


@dataclass(frozen=True)
class CodedQueries:
    """Queries as integers, without their component in one direction, which is kept apart."""

    numbers: ByteMatrix
    along_Q: Tensor


@dataclass(frozen=True)
class CodedBlock(Block):
    """Candidates as integer multiples of their steps, and their component in one direction."""

    steps_B: Tensor
    along_B: Tensor

    def products(self, queries: CodedQueries) -> Tensor:
        """Return float32 products, shape ``(B, Q)``."""
        scores_BQ = queries.numbers.products(self.vectors_BD)
        return scores_BQ.mul_(self.steps_B[:, None]).addr_(self.along_B, queries.along_Q)


Operand = Tensor | CodedQueries


class Rounded(ABC):
    """Candidates whose products are cheap, with a bound on their error.

    Attributes
    ----------
    length : float
        Largest length of a candidate's vector.
    """

    length: float

    @abstractmethod
    def block(self, first: int, last: int) -> Block:
        """Return the candidates of rows ``[first, last)``."""

    @abstractmethod
    def queries(self, queries_QD: Tensor) -> Operand:
        """Return queries in the form that a block is multiplied with."""

    @abstractmethod
    def error_of(self, queries_QD: Tensor) -> Tensor:
        """Bound how far a rounded product is from the float32 one, shape ``(Q,)``, on the host."""

    @property
    def rounding(self) -> float:
        """Share of a product that its type may round away; 0 where ``error_of`` includes it."""
        return 0.0

    def shift_of(self, queries_QD: Tensor) -> Tensor:
        """Return the constant missing from all scores of a query, shape ``(Q,)``."""
        return torch.zeros(len(queries_QD), dtype=torch.float32)

    def most_kept(self, k: int, count: int) -> int:
        """Return how many of ``count`` candidates can be multiplied again faster than all."""
        return count // _MOST_KEPT


@dataclass(frozen=True)
class HalfVectors(Rounded):
    """All candidates in bfloat16.

    With v' = v + δ and q' = q + ε: ``|q'·v' − q·v| ≤ ‖q‖‖δ‖ + ‖ε‖‖v'‖`` (Cauchy and Schwarz), and
    D u ‖q‖‖v‖ for each sum of D float32 products, in any order (u: unit roundoff).

    Attributes
    ----------
    vectors_CD : Tensor
        bfloat16, shape ``(C, D)``.
    bias_C : Tensor or None
        float32; added to their products.
    length, error, bias : float
        Largest length of a vector, of its rounding error, and largest size of a bias.
    """

    vectors_CD: Tensor
    bias_C: Tensor | None
    length: float
    error: float
    bias: float

    @classmethod
    def of(cls, vectors: Vectors) -> HalfVectors:
        """Round all candidates."""
        rounded_CD = torch.empty(vectors.shape, dtype=torch.bfloat16, device=vectors.device)
        length = error = torch.zeros((), dtype=torch.float32, device=vectors.device)
        biases_C = length.new_empty(len(rounded_CD))
        lost = length.new_empty(min(_BLOCK, len(rounded_CD)), vectors.shape[1])
        for rows, vectors_BD, bias_B in vectors_by_block(vectors):
            rounded_BD = rounded_CD[rows].copy_(vectors_BD)
            lost_BD = lost[: len(rounded_BD)].copy_(rounded_BD).sub_(vectors_BD)
            error = torch.maximum(error, lengths_of(lost_BD).max())
            length = torch.maximum(length, lengths_of(vectors_BD).max())
            if bias_B is not None:
                biases_C[rows] = bias_B
        bias_C = None if bias_B is None else biases_C
        bias = 0.0 if bias_C is None else float(bias_C.abs().max())
        return cls(rounded_CD, bias_C, float(length), float(error), bias)

    @property
    def rounding(self) -> float:
        """Half a unit in the last place; a bias can make scores small, so ``error_of`` adds it."""
        return _HALF if self.bias_C is None else 0.0

    def block(self, first: int, last: int) -> Block:
        """Return the candidates of rows ``[first, last)``."""
        bias_B = None if self.bias_C is None else self.bias_C[first:last]
        return Block(self.vectors_CD[first:last], bias_B, None)

    def queries(self, queries_QD: Tensor) -> Tensor:
        """Return the queries in bfloat16."""
        return queries_QD.bfloat16()

    def error_of(self, queries_QD: Tensor) -> Tensor:
        """Bound how far a rounded product is from the float32 one, shape ``(Q,)``."""
        width = queries_QD.shape[1]
        lengths_Q = lengths_of(queries_QD)
        lost_Q = lengths_of(queries_QD - queries_QD.bfloat16().float())
        length = self.length + self.error
        products_Q = (lengths_Q + lost_Q) * length
        error_Q = lengths_Q * self.error + lost_Q * length + 4 * width * SINGLE * products_Q
        if self.bias_C is not None:
            error_Q += _HALF * products_Q + 4 * SINGLE * (products_Q + self.bias)
        # Lengths are rounded too, and the hardware may flush the smallest numbers to zero.
        bound_Q: Tensor = 1.001 * error_Q + width * 2.0**-120 * (1 + lengths_Q + length)
        return bound_Q


@dataclass(frozen=True)
class ByteVectors(Rounded):
    """All candidates, less a point between them, as integer steps of one byte each.

    Cauchy and Schwarz would allow 28 times the error that occurs at width 768, since numbers
    rounded to nearest might all be off to one side. So rounding is randomised: the same dither u,
    drawn from [-1/2, 1/2) in each dimension, is added to all candidates before rounding to nearest
    and subtracted from their products; queries get a dither w that stays. Whatever the vectors are,
    the D errors of a candidate are then independent and uniform over a step s, and those of a query
    independent with mean 0 within a step t. Their products with q and v' add up to a sub-Gaussian
    number of variance at most ``s²‖q‖²/12 + t²‖v'‖²/4`` (Hoeffding's lemma; a uniform number is
    strictly sub-Gaussian); fewer than one product in 10^19 is 9.6 standard deviations off.

    A model's embeddings have much in common, often in few dimensions, which would set the steps of
    all others. So candidates lose their mean, and queries their component in its direction, whose
    products are float32.

    Attributes
    ----------
    codes_CD : Tensor
        uint8, shape ``(C, D)``; 128 is zero.
    steps_C, along_C : Tensor
        float32, shape ``(C,)``: value of one step of each candidate, and its component, less the
        mean, in the mean's direction.
    bias_C : Tensor or None
        float32; added to their products.
    centre_D, direction_D, dither_D : Tensor
        The mean of a sample, its direction, and u; shape ``(D,)``.
    length, spread : float
        Largest length of a vector, and of a decoded one less the centre.
    """

    codes_CD: Tensor
    steps_C: Tensor
    along_C: Tensor
    bias_C: Tensor | None
    centre_D: Tensor
    direction_D: Tensor
    dither_D: Tensor
    length: float
    spread: float

    @classmethod
    def of(cls, vectors: Vectors) -> ByteVectors:
        """Round all candidates, on a host."""
        count, width = vectors.shape
        codes_CD = torch.empty(count, width, dtype=torch.uint8)
        centre_D, dither_D = vectors.sample().mean(dim=0), dither(width, 0)
        direction_D = torch.nn.functional.normalize(centre_D, dim=0)
        # A small tensor kept from each block would sit in the gap that the next block needs.
        steps_C, along_C, biases_C = torch.empty(3, count, dtype=torch.float32)
        length = spread = torch.zeros((), dtype=torch.float32)
        for rows, vectors_BD, bias_B in vectors_by_block(vectors):
            x_BD = vectors_BD - centre_D
            steps_B = _steps(x_BD)
            length = torch.maximum(length, lengths_of(vectors_BD).max())
            # Rounding adds half a step at most in each dimension.
            far_B = lengths_of(x_BD) + 0.5 * width**0.5 * steps_B
            spread = torch.maximum(spread, far_B.max())
            codes_CD[rows] = _rounded(x_BD, steps_B, dither_D).add_(128)
            steps_C[rows] = steps_B
            along_C[rows] = x_BD @ direction_D
            if bias_B is not None:
                biases_C[rows] = bias_B
        bias_C = None if bias_B is None else biases_C
        of_all = centre_D, direction_D, dither_D, float(length), float(spread)
        return cls(codes_CD, steps_C, along_C, bias_C, *of_all)

    def block(self, first: int, last: int) -> CodedBlock:
        """Return the candidates of rows ``[first, last)``."""
        rows = slice(first, last)
        bias_B = None if self.bias_C is None else self.bias_C[rows]
        return CodedBlock(self.codes_CD[rows], bias_B, None, self.steps_C[rows], self.along_C[rows])

    def queries(self, queries_QD: Tensor) -> CodedQueries:
        """Return the queries as integers, with the term that removes the candidates' dither."""
        along_Q, across_QD = self._split(queries_QD)
        steps_Q = _steps(across_QD)
        codes_QD = _rounded(across_QD, steps_Q, dither(queries_QD.shape[1], 1))
        bias_Q = -steps_Q * (codes_QD @ self.dither_D)
        return CodedQueries(ByteMatrix.of(codes_QD.to(torch.int8), steps_Q, bias_Q), along_Q)

    def shift_of(self, queries_QD: Tensor) -> Tensor:
        """Return the products with the centre, shape ``(Q,)``."""
        return queries_QD @ self.centre_D

    def error_of(self, queries_QD: Tensor) -> Tensor:
        """Bound how far a rounded product is from the float32 one, shape ``(Q,)``."""
        width = queries_QD.shape[1]
        lengths_Q = lengths_of(queries_QD)
        _, across_QD = self._split(queries_QD)
        candidates_Q = self.steps_C.max() * lengths_of(across_QD) / 12**0.5
        queries_Q = _steps(across_QD) * self.spread / 2
        products_Q = lengths_Q * (self.length + self.spread)
        error_Q = SURE * torch.hypot(candidates_Q, queries_Q) + 4 * width * SINGLE * products_Q
        if self.bias_C is not None:
            error_Q += 4 * SINGLE * (products_Q + self.bias_C.abs().max())
        bound_Q: Tensor = 1.001 * error_Q + width * 2.0**-120 * (1 + lengths_Q + self.length)
        return bound_Q

    def _split(self, queries_QD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries' components along the mean, ``(Q,)``, and across it, ``(Q, D)``."""
        along_Q = queries_QD @ self.direction_D
        return along_Q, torch.addr(queries_QD, along_Q, self.direction_D, alpha=-1)


@dataclass(frozen=True)
class SingleVectors(Rounded):
    """All candidates in float32, whose products depend on what else is multiplied.

    Attributes
    ----------
    vectors : Vectors
        The candidates.
    length : float
        Largest length of a candidate.
    """

    vectors: Vectors
    length: float

    def most_kept(self, k: int, count: int) -> int:
        """Return more than any list needs unless its scores are all but equal."""
        return 4 * k + count // _MOST_KEPT

    def block(self, first: int, last: int) -> Block:
        """Return the candidates of rows ``[first, last)``."""
        return self.vectors.block(first, last)

    def queries(self, queries_QD: Tensor) -> Tensor:
        """Return the queries."""
        return queries_QD

    def error_of(self, queries_QD: Tensor) -> Tensor:
        """Bound how far two float32 products differ, shape ``(Q,)``: D u ‖q‖‖v‖ from each."""
        return self.error_at(lengths_of(queries_QD))

    def error_at(self, lengths_Q: Tensor) -> Tensor:
        """Bound the same for queries of these lengths."""
        width = self.vectors.shape[1]
        error_Q: Tensor = 4 * width * SINGLE * lengths_Q * self.length
        if self.vectors.block(0, 1).bias_B is not None:
            # A bias is half a squared length, and the sum is rounded.
            error_Q = error_Q + 4 * SINGLE * self.length * (lengths_Q + self.length)
        bound_Q: Tensor = error_Q + width * 2.0**-120 * (1 + lengths_Q + self.length)
        return bound_Q


def lengths_of(x_ND: Tensor) -> Tensor:
    """Bound the rows' lengths, shape ``(N,)``, but for rounding: they are above 0."""
    lengths_N: Tensor = torch.linalg.vector_norm(x_ND, dim=1) + _LOST * x_ND.shape[1] ** 0.5
    return lengths_N


def vectors_by_block(vectors: Vectors) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield rows, and their vectors and biases."""
    for first in range(0, vectors.shape[0], _BLOCK):
        rows = slice(first, min(first + _BLOCK, vectors.shape[0]))
        block = vectors.block(rows.start, rows.stop)
        yield rows, block.scaled_BD, block.bias_B


def dither(width: int, stream: int) -> Tensor:
    """Return numbers in [-1/2, 1/2) independent of any data and the same in every run."""
    generator = torch.Generator().manual_seed(_DITHER + stream)
    return torch.rand(width, generator=generator, dtype=torch.float32) - 0.5


def _steps(x_ND: Tensor) -> Tensor:
    """Return each row's step, which scales its largest number to ``LARGEST``."""
    steps_N = x_ND.abs().amax(dim=1) / LARGEST
    # Rows of zeros, or of numbers too small for a step.
    return torch.where(steps_N < torch.finfo(torch.float32).tiny, 1.0, steps_N)


def _rounded(x_ND: Tensor, steps_N: Tensor, dither_D: Tensor) -> Tensor:
    return (x_ND / steps_N[:, None]).add_(dither_D).round_()
