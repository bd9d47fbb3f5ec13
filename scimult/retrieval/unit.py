"""Vectors scaled to length 1, also where their squares overflow or vanish in float32.

Shape legend: N vectors, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.retrieval.embeddings import LONGEST, SHORTEST


def unit_vectors(x_ND: Tensor) -> Tensor:
    """Return float32 vectors scaled to length 1; zeros stay zeros."""
    lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    odd_N = _odd(lengths_N)
    if odd_N.any():
        largest_N = x_ND.abs().amax(dim=1)
        divided_N = odd_N & (largest_N > 0)
        x_ND = x_ND / torch.where(divided_N, largest_N, 1.0)[:, None]
        lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    return x_ND / torch.where(lengths_N > 0, lengths_N, 1.0)[:, None]


def unit_scales(x_ND: Tensor) -> Tensor:
    """Return what scales vectors to length 1, shape ``(N,)``: 0 for zeros.

    -1 stands for vectors that no one float32 number scales, which need `unit_vectors`.
    """
    lengths_N = torch.linalg.vector_norm(x_ND, dim=1)
    scales_N: Tensor = 1 / lengths_N
    odd_N = _odd(lengths_N)
    if odd_N.any():
        scales_N[odd_N] = -x_ND[odd_N].any(dim=1).float()
    return scales_N


def _odd(lengths_N: Tensor) -> Tensor:
    """Return which lengths are out of range, also NaN."""
    return ~((lengths_N >= SHORTEST) & (lengths_N <= LONGEST))
