"""Triplet margin loss over the scores of a batch (SPECTER, equation 2).

Shape legend: B queries of this rank, C candidates of all ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scimult.losses.info_nce import InBatchScores


def triplet_margin(batch: InBatchScores, margin: float = 1.0) -> Tensor:
    """Return each query's mean over its negatives of max(d(q, c+) - d(q, c-) + margin, 0).

    A distance is minus a score: scores of the similarity ``l2`` make d the L2 norm of
    SPECTER's equation 3, scores of ``cosine`` make it 1 - cosine.

    Parameters
    ----------
    batch : InBatchScores
        Scores, the column of each positive, and the columns that are not negatives.
    margin : float
        How much closer than its negatives a positive has to be; 1 in SPECTER.

    Returns
    -------
    Tensor
        Shape ``(B,)``, float32, not reduced; 0 for a query without negatives.
    """
    positive_B1 = batch.scores_BC.gather(1, batch.targets_B[:, None])
    negative_BC = ~batch.masked_BC
    negative_BC = negative_BC.scatter(1, batch.targets_B[:, None], False)
    hinge_BC = torch.relu(batch.scores_BC - positive_B1 + margin)
    # where, not a product: a masked score may be infinite.
    total_B = torch.where(negative_BC, hinge_BC, 0.0).sum(1)
    return total_B / negative_BC.sum(1).clamp(min=1)
