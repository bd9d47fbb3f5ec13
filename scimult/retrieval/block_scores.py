"""Scores of queries against one block of candidates, padded to whole groups of columns.

Shape legend: Q queries, D width, B candidates of one block.
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

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._buffers: dict[torch.dtype, Tensor] = {}

    def of(self, queries_QD: Operand, block: Block) -> Tensor:
        """Return float32 scores, multiplied in the vectors' type, shape ``(Q, B)``.

        Columns are padded to whole groups with -inf; on a host, each candidate's column is
        contiguous.
        """
        width = len(block.vectors_BD)
        if isinstance(queries_QD, CodedQueries):
            assert isinstance(block, CodedBlock), "codes are multiplied with codes"
            scores_QB = _padded(block.products(queries_QD), width).T
        elif queries_QD.dtype == torch.float32 and self._device.type == "cpu":
            scores_QB = _padded(products(block.vectors_BD, queries_QD), width).T
        elif queries_QD.dtype == torch.float32:
            scores_QB = self._buffer(torch.float32, len(queries_QD), whole_groups(width))
            torch.mm(queries_QD, block.vectors_BD.T, out=scores_QB[:, :width])
        else:
            # Few queries are multiplied faster this way round.
            rounded_BQ = self._buffer(queries_QD.dtype, width, len(queries_QD))
            torch.mm(block.vectors_BD, queries_QD.T, out=rounded_BQ)
            scores_QB = self._buffer(torch.float32, whole_groups(width), len(queries_QD)).T
            scores_QB[:, :width] = rounded_BQ.T
        if block.bias_B is not None:
            scores_QB[:, :width] += block.bias_B
        scores_QB[:, width:] = -torch.inf
        return scores_QB

    def _buffer(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        if dtype not in self._buffers:
            self._buffers[dtype] = torch.empty(self._size, dtype=dtype, device=self._device)
        return self._buffers[dtype][: rows * columns].view(rows, columns)


def whole_groups(width: int) -> int:
    """Return the next multiple of ``GROUP``."""
    return -(-width // GROUP) * GROUP


def _padded(scores_BQ: Tensor, width: int) -> Tensor:
    missing = whole_groups(width) - width
    return torch.nn.functional.pad(scores_BQ, (0, 0, 0, missing)) if missing else scores_BQ
