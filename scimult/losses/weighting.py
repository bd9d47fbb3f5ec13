"""Learned task weights.

Shape legend: T tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogVariance(nn.Module):
    """The log variance s of a task's noise, initially 0 (Kendall et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """Return s, shape ``(1,)``, in float32 at least."""
        wide = torch.promote_types(self.value.dtype, torch.float32)
        return self.value.to(wide, copy=True)


class TaskWeights(nn.Module):
    """Positive weights of T tasks that sum to T, initially equal (GradNorm)."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(tasks))

    def forward(self) -> Tensor:
        """Return the weights, shape ``(T,)``, in float32 at least."""
        wide = torch.promote_types(self.logits.dtype, torch.float32)
        return len(self.logits) * self.logits.to(wide).softmax(0)


def uncertainty_weighted(loss: Tensor, log_variance: Tensor, regression: bool) -> Tensor:
    """Return a task's loss scaled by its learned noise, without the noise term.

    This is exp(-s) times the loss, halved for regression: equations 7 and 10 of Kendall et al.
    (2018), "Multi-Task Learning Using Uncertainty to Weigh Losses". The caller adds s / 2 per task.
    """
    return (0.5 if regression else 1.0) * (-log_variance).exp().sum() * loss


def gradnorm_loss(
    weights_T: Tensor, norms_T: Tensor, losses_T: Tensor, first_losses_T: Tensor, alpha: float
) -> Tensor:
    """Return the loss that trains the task weights, equation 2 of GradNorm (Chen et al., 2018).

    ``norms_T`` are the gradient norms of the unweighted losses, ``alpha`` how strongly slow tasks
    are favoured: 0 equalises all norms. Only the weights receive gradients.
    """
    weighted_T = weights_T * norms_T.detach()
    ratios_T = (losses_T / first_losses_T).detach()
    rates_T = ratios_T / ratios_T.mean()
    target_T = weighted_T.detach().mean() * rates_T**alpha
    return (weighted_T - target_T).abs().sum()
