"""Which step is best by a dev score, and when to stop looking for a better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scimult import distributed
from scimult.progress import note, warn
from scimult.training.loop import Callback, StepReport


@dataclass(frozen=True)
class BestStep:
    """A step and its score."""

    step: int
    score: float


class Selection(Callback):
    """Follows one dev score; higher is better, and the first of equals stays the best.

    Parameters
    ----------
    metric : str
        Name of the score among the metrics of a step. Without it nothing ever happens.
    patience : int, optional
        Evaluations in a row without a better score after which the run is over.
    keep_best : bool
        Whether a checkpoint of each new best step is wanted.
    """

    def __init__(self, metric: str, patience: int | None, keep_best: bool) -> None:
        self.metric = metric
        self.best: BestStep | None = None
        self._patience, self._keep_best = patience, keep_best
        self._without_gain = 0

    @property
    def is_over(self) -> bool:
        """Whether patience has run out."""
        return self._patience is not None and self._without_gain >= self._patience

    def on_step(self, report: StepReport) -> None:
        """Compare the step's score, if it was evaluated."""
        if self.metric not in report.metrics:
            return
        # Rounding may differ between the ranks' processors: one of them decides.
        score = float(distributed.broadcast_object(report.metrics[self.metric]))
        if self.best is None or score > self.best.score:
            self.best, self._without_gain = BestStep(report.step, score), 0
            return
        self._without_gain += 1
        if self.is_over:
            note(
                f"{self.metric} was best at step {self.best.step} ({self.best.score:.4f}) and no "
                f"better in {self._without_gain} evaluations: training ends at step {report.step}"
            )

    def wants_checkpoint(self, step: int) -> bool:
        """Whether the state of this step must be kept, beside those that are due."""
        is_best = self.best is not None and self.best.step == step
        return self.is_over or (self._keep_best and is_best)

    @property
    def state(self) -> dict[str, Any]:
        """What a resumed run must remember, as JSON values."""
        best = None if self.best is None else vars(self.best)
        return {"metric": self.metric, "best": best, "without_gain": self._without_gain}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what `state` gave; the scores of another metric do not compare."""
        if state["metric"] != self.metric:
            warn(f"scores of {state['metric']} are forgotten: dev.metric is {self.metric}")
            return
        self.best = None if state["best"] is None else BestStep(**state["best"])
        self._without_gain = state["without_gain"]
