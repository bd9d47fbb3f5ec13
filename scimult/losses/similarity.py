"""Similarity of every query to every candidate.

Shape legend: B queries, C candidates, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from scimult.types import Similarity


def similarity_matrix(q_BD: Tensor, c_CD: Tensor, similarity: Similarity) -> Tensor:
    """Return all scores in float32, larger for closer pairs.

    ``dot`` is equation 1 of SciMult; ``cosine`` normalises both sides; ``l2`` is the
    negative Euclidean distance that SPECTER ranks by.

    Returns
    -------
    Tensor
        Shape ``(B, C)``.
    """
    q_BD, c_CD = q_BD.float(), c_CD.float()
    if similarity == "cosine":
        q_BD, c_CD = F.normalize(q_BD, dim=-1), F.normalize(c_CD, dim=-1)
    if similarity == "l2":
        return -torch.cdist(q_BD, c_CD)
    return q_BD @ c_CD.T
