"""The numbers of a step on their way from the device to the host.

Shape legend: S statistics of queries (`metrics.STATISTICS`), P parts of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scimult.training.metrics import Sums, add_sums
from scimult.training.objective import PartResult


@dataclass(frozen=True)
class StepNumbers:
    """What one rank computed in a step.

    ``sums`` are those of its queries by task, ``masked`` counts columns, ``squares_P`` are its
    share of the squared gradient norms of the parts of the model, where they are kept.
    """

    sums: Sums
    masked: int
    gradient_norm: float
    squares_P: list[float]


class NumbersOnTheWay:
    """Copies what a report needs as soon as the device has it, and waits only where it is read.

    The copies stand behind the work of their step and before that of the next one: the device
    goes on while the host reads them.

    Parameters
    ----------
    results : sequence of PartResult
        Of every part of the step's units.
    gradient_norm : Tensor
        Before clipping, one number.
    squares_P : Tensor
        See `StepNumbers`.
    """

    def __init__(
        self, results: Sequence[PartResult], gradient_norm: Tensor, squares_P: Tensor
    ) -> None:
        self._tasks = [result.task for result in results]
        statistics = torch.stack([result.statistics_S for result in results])
        masked = torch.stack([result.masked for result in results])
        # Copies from a GPU go to pinned memory: nothing else would let the host go on.
        self._copies = [
            values.detach().to("cpu", torch.float64, non_blocking=True)
            for values in (statistics, masked, gradient_norm, squares_P)
        ]
        self._arrived: torch.cuda.Event | None = None
        if statistics.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def read(self) -> StepNumbers:
        """Return the numbers, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        statistics, masked, norm, squares_P = self._copies
        by_part = [
            {task: sums} for task, sums in zip(self._tasks, statistics.tolist(), strict=True)
        ]
        return StepNumbers(
            add_sums(by_part), int(masked.sum()), float(norm), list(squares_P.tolist())
        )
