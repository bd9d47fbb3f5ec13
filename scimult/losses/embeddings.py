"""Losses that follow a teacher's embeddings text by text, and a projection to its width.

Shape legend: U distinct texts of a micro-batch on this rank, K texts that they are compared with,
N texts that the projection is fitted to, D width of the model, E width of the teacher, B queries,
C candidates and H hard negatives of this rank.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.losses.contrastive import similarity_matrix
from scimult.types import FloatArray


def cosine_distance(student_UE: Tensor, teacher_UE: Tensor) -> Tensor:
    """Return 1 - cosine of each text's two embeddings: shape ``(U,)``, in float32 at least.

    Computed as half the squared distance of the unit vectors: the same number, but exact near 0
    and with zero gradient where they agree.
    """
    wide = torch.promote_types(student_UE.dtype, torch.float32)
    student_UE, teacher_UE = (
        F.normalize(x_UE.to(wide), dim=-1) for x_UE in (student_UE, teacher_UE)
    )
    return (student_UE - teacher_UE).square().sum(-1) / 2


def relational_distance(
    student_UD: Tensor, student_KD: Tensor, teacher_UE: Tensor, teacher_KE: Tensor
) -> Tensor:
    """Return each text's mean squared difference between the student's and the teacher's cosines.

    This is similarity-preserving distillation (Tung and Mori, 2019) of cosines, the similarity
    loss of embedding models (Zhang et al., 2024, "Jasper and Stella", arXiv 2412.19048): widths
    may differ, and a rotation costs nothing. Distances (Park et al., 2019) would need scaling by
    their batch mean; cosines share one scale. The shape is ``(U,)``, in float32 at least.
    """
    student_UK = similarity_matrix(student_UD, student_KD, "cosine")
    teacher_UK = similarity_matrix(teacher_UE, teacher_KE, "cosine")
    return (student_UK - teacher_UK).square().mean(1)


def mean_over_pairs(
    losses_U: Tensor, query_B: Tensor, candidate_C: Tensor, negative_rows_H: Tensor
) -> Tensor:
    """Return, for each query, the mean loss of its pair's texts, shape ``(B,)``.

    A pair's texts are the query, its positive, and its hard negative if it has one. The mean over
    queries does not depend on how pairs are distributed over ranks, though each rank encodes a
    text only once. The last three are those of `data.batches.Batch`.
    """
    positives, negatives = candidate_C[: len(query_B)], candidate_C[len(query_B) :]
    sums_B = losses_U[query_B] + losses_U[positives]
    sums_B = sums_B.index_add(0, negative_rows_H, losses_U[negatives])
    texts_B = torch.full_like(sums_B, 2.0).index_add(
        0, negative_rows_H, torch.ones_like(losses_U[negatives])
    )
    return sums_B / texts_B


# Relative to the mean variance per dimension: a thousand texts leave the smallest directions to
# chance.
_RIDGE = 0.1


class Projection(nn.Module):
    """A learned linear map without bias; weights have shape ``(E, D)``."""

    def __init__(self, weight_ED: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_ED)

    def forward(self) -> Tensor:
        """Return the weights, in float32 at least."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        return self.weight.to(wide, copy=True)


def fitted_projection(student_ND: FloatArray, teacher_NE: FloatArray) -> Tensor:
    """Fit a linear map from embeddings to a teacher's vectors by ridge regression.

    The weights are float32, shape ``(E, D)``. Both sides have length 1. Training with a random map
    would first bend the model towards chance; fitting the map to the model first preserves what it
    knows (Kumar et al., 2022, "Fine-Tuning can Distort Pretrained Features").
    """
    units_ND, goals_NE = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        for x in (student_ND.astype(np.float64), teacher_NE.astype(np.float64))
    )
    gram_DD = units_ND.T @ units_ND
    width = len(gram_DD)
    ridge = _RIDGE * np.trace(gram_DD) / width
    weight_DE = np.linalg.solve(gram_DD + ridge * np.eye(width), units_ND.T @ goals_NE)
    return torch.from_numpy(np.ascontiguousarray(weight_DE.T, dtype=np.float32))
