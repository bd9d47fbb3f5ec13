"""Losses of heads on targets (SciRepEval, section 4.2).

Shape legend: B papers, K outputs of the head: one per class, or a single number.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def head_losses(kind: str, outputs_BK: Tensor, targets_B: Tensor) -> Tensor:
    """Return each paper's loss, shape ``(B,)``.

    Parameters
    ----------
    kind : str
        ``multi_class``: cross-entropy with class numbers; ``multi_label``: the mean over classes of
        binary cross-entropy with 0 and 1, shape ``(B, K)``; ``regression``: the squared error.
    outputs_BK : Tensor
        The head's outputs.
    targets_B : Tensor
        See `TargetFile.targets`.
    """
    if kind == "multi_class":
        return F.cross_entropy(outputs_BK, targets_B, reduction="none")
    targets_B = targets_B.to(outputs_BK.dtype)
    if kind == "multi_label":
        losses_BK = F.binary_cross_entropy_with_logits(outputs_BK, targets_B, reduction="none")
        return losses_BK.mean(1)
    return (outputs_BK[:, 0] - targets_B).square()
