"""Similarity of every query to every candidate.

Shape legend: B queries, C candidates, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
