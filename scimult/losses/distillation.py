"""Losses that follow the scores of a teacher on each query's own candidates.

Shape legend: B queries of this rank, C candidates of all ranks, H hard negatives of this
rank's queries. A teacher's score that is not known is NaN.
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
    """Place the teacher's scores where the student's are: own candidates only, else NaN.

    Parameters
    ----------
    teacher_B, teacher_H : Tensor
        Scores of each query's positive and of each hard negative.
    targets_B : Tensor of int
        Column of each positive.
    rows_H, columns_H : Tensor of int
        Query row and column of each hard negative.
    columns : int
        Number of columns, C.

    Returns
    -------
    Tensor
        Shape ``(B, C)``.
    """
    teacher_BC = teacher_B.new_full((len(teacher_B), columns), float("nan"))
    teacher_BC[rows_H, columns_H] = teacher_H
    return teacher_BC.scatter(1, targets_B[:, None], teacher_B[:, None])


def listwise_kl(batch: InBatchScores, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Return each query's KL divergence from the teacher's to the student's distribution.

    Both are a softmax over the candidates that the teacher scored for the query (RocketQAv2,
    Ren et al., 2021).

    Parameters
    ----------
    batch : InBatchScores
        The student's scores.
    teacher_BC : Tensor
        The teacher's scores, divided by its own temperature already.
    temperature : float
        Divides the student's scores.

    Returns
    -------
    Tensor
        Shape ``(B,)``, float32, not reduced; 0 for a query with fewer than two known scores.
    """
    known_BC = ~teacher_BC.isnan()
    usable_B = known_BC.sum(1) > 1
    # A softmax over nothing is not a number, and so is its gradient: a query without a list
    # is given one and counts 0. Leaving its row out would make a GPU tell how many there are.
    left_out_BC = ~known_BC & usable_B[:, None]
    teacher_BC = teacher_BC.masked_fill(~known_BC, 0.0).masked_fill(left_out_BC, float("-inf"))
    student_BC = (batch.scores_BC / temperature).masked_fill(left_out_BC, float("-inf"))
    log_p_BC = F.log_softmax(teacher_BC, 1).masked_fill(left_out_BC, 0.0)
    log_q_BC = F.log_softmax(student_BC, 1).masked_fill(left_out_BC, 0.0)
    terms_BC = (log_p_BC.exp() * (log_p_BC - log_q_BC)).masked_fill(left_out_BC, 0.0)
    return terms_BC.sum(1).masked_fill(~usable_B, 0.0)


def margin_mse(batch: InBatchScores, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Return each query's mean squared difference between the student's and teacher's margins.

    A margin is the score of the positive minus that of a negative (Hofstätter et al., 2020),
    over the negatives that the teacher scored.

    Parameters
    ----------
    batch : InBatchScores
        The student's scores and the column of each positive.
    teacher_BC : Tensor
        The teacher's scores, divided by its own temperature already.
    temperature : float
        Divides the student's scores.

    Returns
    -------
    Tensor
        Shape ``(B,)``, float32, not reduced; 0 for a query without a known margin.
    """
    scores_BC, targets_B1 = batch.scores_BC / temperature, batch.targets_B[:, None]
    theirs_BC = teacher_BC.gather(1, targets_B1) - teacher_BC
    ours_BC = scores_BC.gather(1, targets_B1) - scores_BC
    known_BC = (~theirs_BC.isnan()).scatter(1, targets_B1, False)
    # NaN goes before the product: its gradient would be NaN even where it is not used.
    squared_BC = (ours_BC - theirs_BC.masked_fill(~known_BC, 0.0)).square()
    total_B = squared_BC.masked_fill(~known_BC, 0.0).sum(1)
    return total_B / known_BC.sum(1).clamp(min=1)
