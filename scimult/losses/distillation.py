"""Losses that follow a teacher's scores on each query's own candidates.

Shape legend: B queries of this rank, C candidates of all ranks, H hard negatives of this
rank's queries. An unknown teacher score is NaN.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from scimult.losses.contrastive import InBatchScores


def own_teacher_scores(
    teacher_B: Tensor,
    teacher_H: Tensor,
    targets_B: Tensor,
    rows_H: Tensor,
    columns_H: Tensor,
    columns: int,
) -> Tensor:
    """Scatter the teacher's scores into shape ``(B, C)``; NaN for other queries' candidates.

    ``teacher_B`` belongs to each query's positive, in column ``targets_B``, and ``teacher_H`` to
    each hard negative, in row ``rows_H`` and column ``columns_H``; ``columns`` is C.
    """
    teacher_BC = teacher_B.new_full((len(teacher_B), columns), float("nan"))
    teacher_BC[rows_H, columns_H] = teacher_H
    return teacher_BC.scatter(1, targets_B[:, None], teacher_B[:, None])


def listwise_kl(batch: InBatchScores, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Return each query's KL divergence from the teacher's to the student's distribution.

    Each is a softmax over the candidates that the teacher scored for the query (RocketQAv2,
    Ren et al., 2021). ``temperature`` divides the student's scores; the teacher's are already
    divided by its own. The shape is ``(B,)``; a query with fewer than two known scores has 0.
    """
    known_BC = ~teacher_BC.isnan()
    usable_B = known_BC.sum(1) > 1
    # An empty softmax is NaN, and so is its gradient: unusable rows keep all columns and count 0.
    # Dropping them would make the host wait for a GPU to count them.
    masked_BC = ~known_BC & usable_B[:, None]
    teacher_BC = teacher_BC.masked_fill(~known_BC, 0.0).masked_fill(masked_BC, float("-inf"))
    student_BC = (batch.scores_BC / temperature).masked_fill(masked_BC, float("-inf"))
    log_p_BC = F.log_softmax(teacher_BC, 1).masked_fill(masked_BC, 0.0)
    log_q_BC = F.log_softmax(student_BC, 1).masked_fill(masked_BC, 0.0)
    terms_BC = (log_p_BC.exp() * (log_p_BC - log_q_BC)).masked_fill(masked_BC, 0.0)
    return terms_BC.sum(1).masked_fill(~usable_B, 0.0)


def margin_mse(batch: InBatchScores, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Return each query's mean squared error between the student's and the teacher's margins.

    A margin is the positive's score minus a negative's (Hofstätter et al., 2020); the mean is
    over the negatives that the teacher scored. Temperatures are as in `listwise_kl`. The shape is
    ``(B,)``; a query without a known margin has 0.
    """
    scores_BC, targets_B1 = batch.scores_BC / temperature, batch.targets_B[:, None]
    teacher_margins_BC = teacher_BC.gather(1, targets_B1) - teacher_BC
    margins_BC = scores_BC.gather(1, targets_B1) - scores_BC
    known_BC = (~teacher_margins_BC.isnan()).scatter(1, targets_B1, False)
    # NaN must go before squaring: its gradient would be NaN even where the result is masked.
    squared_BC = (margins_BC - teacher_margins_BC.masked_fill(~known_BC, 0.0)).square()
    total_B = squared_BC.masked_fill(~known_BC, 0.0).sum(1)
    return total_B / known_BC.sum(1).clamp(min=1)
