"""Scores of queries and one block of candidates, in whole groups of columns.

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
    """Scores of one block after the other; those of bfloat16 and of a GPU in buffers."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._buffers: dict[torch.dtype, Tensor] = {}

    def of(self, queries_QD: Operand, block: Block) -> Tensor:
        """Multiply, in the type of the vectors, and return float32 scores, shape ``(Q, B)``.

        Columns are filled up to whole groups by -inf; on a host, those of one candidate lie
        together.
        """
        width = len(block.vectors_BD)
        if isinstance(queries_QD, CodedQueries):
            assert isinstance(block, CodedBlock), "codes are multiplied with codes"
            scores_QB = _filled_up(block.products(queries_QD), width).T
        elif queries_QD.dtype == torch.float32 and self._device.type == "cpu":
            scores_QB = _filled_up(products(block.vectors_BD, queries_QD), width).T
        elif queries_QD.dtype == torch.float32:
            scores_QB = self._buffer(torch.float32, len(queries_QD), whole_groups(width))
            torch.mm(queries_QD, block.vectors_BD.T, out=scores_QB[:, :width])
        else:
            # This way round few queries are multiplied faster.
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


def _filled_up(scores_BQ: Tensor, width: int) -> Tensor:
    missing = whole_groups(width) - width
    return torch.nn.functional.pad(scores_BQ, (0, 0, 0, missing)) if missing else scores_BQ
