"""Scores of queries and a block of candidates, rounded or not.

Shape legend: Q queries, B candidates of one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.products import products
from scimult.retrieval.rounded import CodedBlock, CodedQueries, Operand
from scimult.retrieval.selection import GROUP
from scimult.retrieval.vectors import Block


class BlockScores:
    """Computes scores block by block; reuses buffers for bfloat16 and on a GPU."""

    def __init__(self, size: int, device: torch.device, *, on_host: bool = True) -> None:
        self._size, self._device, self._on_host = size, device, on_host
        self._buffers: dict[torch.dtype, Tensor] = {}

    def of(self, queries_QD: Operand, block: Block) -> Tensor:
        """Return scores, multiplied in the vectors' type, shape ``(Q, B)``.

        They are float32, but on a GPU bfloat16 without a bias: half as much memory to move.
        Columns are padded to whole groups with -inf; on a host, each candidate's column is
        contiguous.
        """
        if not self._on_host:
            assert isinstance(queries_QD, Tensor), "codes are for hosts"
            return self._on_gpu(queries_QD, block)
        width = len(block.vectors_BD)
        if isinstance(queries_QD, CodedQueries):
            assert isinstance(block, CodedBlock), "codes are multiplied with codes"
            scores_QB = _padded(block.products(queries_QD), width).T
        elif queries_QD.dtype == torch.float32:
            scores_QB = _padded(products(block.vectors_BD, queries_QD), width).T
        else:
            # Few queries are multiplied faster this way round.
            rounded_BQ = self._buffer(queries_QD.dtype, width, len(queries_QD))
            torch.mm(block.vectors_BD, queries_QD.T, out=rounded_BQ)
            scores_QB = self._buffer(torch.float32, whole_groups(width), len(queries_QD)).T
            scores_QB[:, :width] = rounded_BQ.T
        return _finished(scores_QB, block, width)

    def _on_gpu(self, queries_QD: Tensor, block: Block) -> Tensor:
        width = len(block.vectors_BD)
        scores_QB = self._buffer(queries_QD.dtype, len(queries_QD), whole_groups(width))
        torch.mm(queries_QD, block.vectors_BD.T, out=scores_QB[:, :width])
        if block.bias_B is not None:
            scores_QB = scores_QB.float()
        return _finished(scores_QB, block, width)

    def _buffer(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        if dtype not in self._buffers:
            self._buffers[dtype] = torch.empty(self._size, dtype=dtype, device=self._device)
        return self._buffers[dtype][: rows * columns].view(rows, columns)


def whole_groups(width: int) -> int:
    """Return the next multiple of ``GROUP``."""
    return -(-width // GROUP) * GROUP


def _finished(scores_QB: Tensor, block: Block, width: int) -> Tensor:
    if block.scale_B is not None:
        scores_QB[:, :width] *= block.scale_B
    if block.bias_B is not None:
        scores_QB[:, :width] += block.bias_B
    if width < scores_QB.shape[1]:
        scores_QB[:, width:] = -torch.inf
    return scores_QB


def _padded(scores_BQ: Tensor, width: int) -> Tensor:
    missing = whole_groups(width) - width
    return torch.nn.functional.pad(scores_BQ, (0, 0, 0, missing)) if missing else scores_BQ
