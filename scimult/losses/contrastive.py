"""Losses over the scores of a batch: similarities, InfoNCE and the triplet margin loss.

Shape legend: B queries of this rank, C candidates of all ranks, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.types import Similarity


@dataclass(frozen=True)
class InBatchScores:
    """Scores of one batch, the column of each positive, and the columns that are no negatives."""

    scores_BC: Tensor
    targets_B: Tensor
    masked_BC: Tensor


def info_nce(batch: InBatchScores, temperature: float | Tensor = 1.0) -> Tensor:
    """Return each query's negative log-probability of its positive, shape ``(B,)``.

    ``temperature`` divides the similarities; 1 for the dot product of the paper.
    """
    logits_BC = batch.scores_BC / temperature
    logits_BC = logits_BC.masked_fill(batch.masked_BC, float("-inf"))
    return F.cross_entropy(logits_BC, batch.targets_B, reduction="none")


def similarity_matrix(q_BD: Tensor, c_CD: Tensor, similarity: Similarity) -> Tensor:
    """Return all scores, larger for closer pairs: shape ``(B, C)``, in float32 at least.

    ``dot`` is equation 1 of SciMult; ``cosine`` normalises both sides; ``l2`` is the
    negative Euclidean distance that SPECTER ranks by.
    """
    wide = torch.promote_types(q_BD.dtype, torch.float32)
    q_BD, c_CD = q_BD.to(wide), c_CD.to(wide)
    if similarity == "cosine":
        q_BD, c_CD = F.normalize(q_BD, dim=-1), F.normalize(c_CD, dim=-1)
    if similarity == "l2":
        # float64: from 26 rows on torch multiplies, and float32 digits would cancel between close
        # texts. Differences are ten times slower and need B x C x D on GPUs.
        return -torch.cdist(q_BD.double(), c_CD.double()).to(wide)
    return q_BD @ c_CD.T


class Temperature(nn.Module):
    """A learned temperature: ``initial * exp(log_ratio)``, with ``log_ratio`` 0 at first.

    CLIP (Radford et al., 2021, section 2.3) learns log(1 / temperature). Starting at 0, where
    bfloat16 is finest, keeps the value precise in bfloat16 runs.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_ratio = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """Return the temperature, shape ``(1,)``, in float32 at least."""
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        return self.initial * self.log_ratio.to(wide).exp()


def triplet_margin(batch: InBatchScores, margin: float = 1.0) -> Tensor:
    """Return each query's mean over its negatives of max(d(q, c+) - d(q, c-) + margin, 0).

    A distance is a negated score: with similarity ``l2``, d is SPECTER's L2 norm (section 2.3);
    with ``cosine`` the hinge is that of d = 1 - cosine. The margin is 1 in SPECTER.
    The shape is ``(B,)``; a query without negatives has 0.
    """
    positive_B1 = batch.scores_BC.gather(1, batch.targets_B[:, None])
    negative_BC = (~batch.masked_BC).scatter(1, batch.targets_B[:, None], False)
    hinge_BC = torch.relu(batch.scores_BC - positive_B1 + margin)
    # torch.where, not a product: masked scores may be infinite.
    total_B = torch.where(negative_BC, hinge_BC, 0.0).sum(1)
    return total_B / negative_BC.sum(1).clamp(min=1)
