"""Combine the losses of a micro-batch's parts into the number to minimise.

Shape legend: U distinct texts of a micro-batch on this rank, D width, T tasks of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import MicroBatch
from scimult.losses.weighting import gradnorm_loss, uncertainty_weighted
from scimult.training.learned import TASK_WEIGHTS, Values, log_variance_name
from scimult.training.loss_config import LossConfig
from scimult.training.objective import PartResult

_SMALL = 1e-12


class Weighting:
    """Combines this rank's losses so that the mean over ranks is the micro-batch's loss.

    ``weights`` are the fixed ones of all trained tasks, in the order of `TaskWeights`.
    """

    def __init__(self, options: LossConfig, weights: Mapping[str, float]) -> None:
        self._options = options
        self._weights = dict(weights)
        self._first_losses: dict[str, float] = {}

    @property
    def state(self) -> dict[str, float]:
        """State for `restore`: the first losses of tasks, for GradNorm."""
        return dict(self._first_losses)

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the ``state`` of an interrupted run."""
        self._first_losses = dict(state)

    def __call__(
        self,
        results: Sequence[PartResult],
        micro_batch: MicroBatch,
        embeddings_UD: Tensor,
        learned: Values,
    ) -> Tensor:
        """Return this rank's loss; every rank must call it."""
        ranks = distributed.world_size()
        if self._options.reduction == "pairs":
            weighted = [result.loss * self._weights[result.task] for result in results]
            return torch.stack(weighted).sum() * (ranks / micro_batch.pairs)
        sums: dict[str, Tensor] = {}
        for result in results:
            sums[result.task] = sums.get(result.task, 0) + result.loss
        # Summed over ranks, these give each task's mean.
        shares = {task: loss / micro_batch.pairs_of[task] for task, loss in sums.items()}
        if self._options.weighting == "uncertainty":
            return self._uncertain(shares, learned, ranks)
        if self._options.weighting == "gradnorm":
            return self._balanced(shares, embeddings_UD, learned[TASK_WEIGHTS], ranks)
        fixed = [loss * self._weights[task] for task, loss in shares.items()]
        return torch.stack(fixed).sum() * ranks

    def _uncertain(self, shares: Mapping[str, Tensor], learned: Values, ranks: int) -> Tensor:
        heads = self._options.heads
        terms = []
        for task, loss in shares.items():
            log_variance = learned[log_variance_name(task)]
            regression = task in heads and heads[task].name == "regression"
            # Each rank has a share of the loss but the whole noise term.
            terms.append(uncertainty_weighted(loss * ranks, log_variance, regression))
            terms.append(log_variance.sum() / 2)
        return torch.stack(terms).sum()

    def _balanced(
        self, shares: Mapping[str, Tensor], embeddings_UD: Tensor, weights: Tensor, ranks: int
    ) -> Tensor:
        """Weight by GradNorm, with norms of gradients with respect to embeddings.

        The paper uses the last shared layer's weights, which costs a backward pass of each task
        through it. Here all tasks share the embeddings, where the loss computation starts.
        """
        order = list(self._weights)
        weights_T = weights[torch.tensor([order.index(task) for task in shares])]
        squares = []
        for loss in shares.values():
            (gradient_UD,) = torch.autograd.grad(
                loss, embeddings_UD, retain_graph=True, allow_unused=True
            )
            zero = embeddings_UD.new_zeros(())
            squares.append(zero if gradient_UD is None else gradient_UD.square().sum())
        losses_T = torch.stack([loss.detach() for loss in shares.values()])
        totals_2T = torch.stack([torch.stack(squares).to(losses_T.dtype), losses_T])
        distributed.sum_over_ranks(totals_2T)
        norms_T, losses_T = totals_2T[0].sqrt(), totals_2T[1].clamp(min=_SMALL)
        for number, task in enumerate(shares):
            # A pair without negatives has loss 0, which no later loss can be compared with.
            if task not in self._first_losses and (first := float(losses_T[number])) > _SMALL:
                self._first_losses[task] = first
        first_T = losses_T.new_tensor([self._first_losses.get(task, _SMALL) for task in shares])
        alpha = self._options.gradnorm_alpha
        assert alpha is not None
        balance = gradnorm_loss(weights_T, norms_T, losses_T, first_T, alpha)
        local = torch.stack(list(shares.values()))
        return (weights_T.detach() * local).sum() * ranks + balance
