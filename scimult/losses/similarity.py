"""Similarity of every query to every candidate, and the temperature that divides it.

Shape legend: B queries, C candidates, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.types import Similarity


def similarity_matrix(q_BD: Tensor, c_CD: Tensor, similarity: Similarity) -> Tensor:
    """Return all scores, larger for closer pairs.

    ``dot`` is equation 1 of SciMult; ``cosine`` normalises both sides; ``l2`` is the
    negative Euclidean distance that SPECTER ranks by.

    Returns
    -------
    Tensor
        Shape ``(B, C)``, float32, or float64 for embeddings in float64.
    """
    wide = torch.promote_types(q_BD.dtype, torch.float32)
    q_BD, c_CD = q_BD.to(wide), c_CD.to(wide)
    if similarity == "cosine":
        q_BD, c_CD = F.normalize(q_BD, dim=-1), F.normalize(c_CD, dim=-1)
    if similarity == "l2":
        # By products, as torch does it from 26 rows on: their float32 digits would cancel where
        # texts are close. Taking differences is ten times slower, and on GPUs needs B x C x D.
        return -torch.cdist(q_BD.double(), c_CD.double()).to(wide)
    return q_BD @ c_CD.T


class Temperature(nn.Module):
    """A trained positive number: ``initial * exp(log_ratio)``, with ``log_ratio`` 0 at first.

    CLIP (Radford et al., 2021, section 2.3) learns log(1 / temperature). Here the parameter
    starts at 0, around which bfloat16 is finest: the value of a bfloat16 run stays precise.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_ratio = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """Return the temperature, shape ``(1,)``, in float32 at least."""
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        return self.initial * self.log_ratio.to(wide).exp()
