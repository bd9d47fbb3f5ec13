"""Weights of tasks that are learned with them.

Shape legend: T tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogVariance(nn.Module):
    """The logarithm s of the variance of a task's noise, 0 at first (Kendall et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """Return s, shape ``(1,)``, in float32 at least."""
        wide = torch.promote_types(self.value.dtype, torch.float32)
        return self.value.to(wide, copy=True)


class TaskWeights(nn.Module):
    """Positive weights of T tasks that always sum to T, alike at first (GradNorm)."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(tasks))

    def forward(self) -> Tensor:
        """Return the weights, shape ``(T,)``, in float32 at least."""
        wide = torch.promote_types(self.logits.dtype, torch.float32)
        return len(self.logits) * self.logits.to(wide).softmax(0)


def uncertainty_weighted(loss: Tensor, log_variance: Tensor, regression: bool) -> Tensor:
    """Return a task's loss under its learned noise, without the term of the noise alone.

    Exp(-s) times the loss, half of it for a regression: equations 7 and 10 of Kendall et al.
    (2018), "Multi-Task Learning Using Uncertainty to Weigh Losses". To the sum of tasks belongs
    s / 2 of each.
    """
    return (0.5 if regression else 1.0) * (-log_variance).exp().sum() * loss


def gradnorm_loss(
    weights_T: Tensor, norms_T: Tensor, losses_T: Tensor, first_losses_T: Tensor, alpha: float
) -> Tensor:
    """Return what the weights are trained by: equation 2 of GradNorm (Chen et al., 2018).

    Parameters
    ----------
    weights_T : Tensor
        Learned weights.
    norms_T : Tensor
        Norm of the gradient of each loss alone, without its weight.
    losses_T, first_losses_T : Tensor
        Each loss now, and when training began.
    alpha : float
        How strongly tasks that learn slowly are favoured; 0 makes all norms alike.

    Returns
    -------
    Tensor
        A number; gradients go to the weights alone.
    """
    weighted_T = weights_T * norms_T.detach()
    ratios_T = (losses_T / first_losses_T).detach()
    rates_T = ratios_T / ratios_T.mean()
    wanted_T = weighted_T.detach().mean() * rates_T**alpha
    return (weighted_T - wanted_T).abs().sum()
