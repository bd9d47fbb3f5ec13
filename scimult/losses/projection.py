"""A linear map from a model's embeddings to those of a teacher of another width.

Shape legend: N texts, D width of the model, E width of the teacher.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from scimult.types import FloatArray

# Of the mean variance of a dimension. A thousand texts leave the smallest directions to chance.
_RIDGE = 0.1


class Projection(nn.Module):
    """Trained weights of a linear map, without a bias; shape ``(E, D)``."""

    def __init__(self, weight_ED: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_ED)

    def forward(self) -> Tensor:
        """Return the weights, in float32 at least."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        return self.weight.to(wide, copy=True)


def fitted_projection(student_ND: FloatArray, teacher_NE: FloatArray) -> Tensor:
    """Return the linear map that takes the embeddings closest to the vectors of a teacher.

    Ridge regression between vectors of length 1. A model that is trained with a map that begins
    at random is bent towards chance first; fitting the map to the model as it is spares what the
    model knows (Kumar et al., 2022, "Fine-Tuning can Distort Pretrained Features").

    Returns
    -------
    Tensor
        float32, shape ``(E, D)``.
    """
    student_ND, teacher_NE = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        for x in (student_ND.astype(np.float64), teacher_NE.astype(np.float64))
    )
    gram_DD = student_ND.T @ student_ND
    width = len(gram_DD)
    ridge = _RIDGE * np.trace(gram_DD) / width
    weight_DE = np.linalg.solve(gram_DD + ridge * np.eye(width), student_ND.T @ teacher_NE)
    return torch.from_numpy(np.ascontiguousarray(weight_DE.T, dtype=np.float32))
