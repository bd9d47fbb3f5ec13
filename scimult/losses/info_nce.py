"""InfoNCE over in-batch and hard negatives (SciMult, equation 2).

Shape legend: B queries of this rank, C candidates of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class InBatchScores:
    """Scores of one batch: who is the positive, who must not count as a negative."""

    scores_BC: Tensor
    targets_B: Tensor
    masked_BC: Tensor


def info_nce(batch: InBatchScores, temperature: float | Tensor = 1.0) -> Tensor:
    """Return each query's loss: minus the log-probability of its positive.

    Parameters
    ----------
    batch : InBatchScores
        Similarities, the column of each positive, and the masked columns.
    temperature : float or Tensor
        Divides the similarities; 1 for the dot product of the paper.

    Returns
    -------
    Tensor
        Shape ``(B,)``, float32, not reduced.
    """
    logits_BC = batch.scores_BC / temperature
    logits_BC = logits_BC.masked_fill(batch.masked_BC, float("-inf"))
    return F.cross_entropy(logits_BC, batch.targets_B, reduction="none")
