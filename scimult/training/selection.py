"""Select the best step by a dev score, and stop training when it no longer improves."""

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
    """Tracks one dev score; higher is better, and the first of equals stays the best.

    Training ends after ``patience`` evaluations in a row without a better score; ``keep_best``
    requests a checkpoint of each new best step.
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
        # Rounding may differ between the ranks' processors, so one of them decides.
        score = float(distributed.broadcast_object(report.metrics[self.metric]))
        if self.best is None or score > self.best.score:
            self.best, self._without_gain = BestStep(report.step, score), 0
            return
        self._without_gain += 1
        if self.is_over:
            note(
                f"{self.metric} was best at step {self.best.step} ({self.best.score:.4f}) and has "
                f"not improved in {self._without_gain} evaluations: training ends at step "
                f"{report.step}"
            )

    def wants_checkpoint(self, step: int) -> bool:
        """Return whether this step needs a checkpoint even if none is due."""
        is_best = self.best is not None and self.best.step == step
        return self.is_over or (self._keep_best and is_best)

    @property
    def state(self) -> dict[str, Any]:
        """State for `restore`, as JSON values."""
        best = None if self.best is None else vars(self.best)
        return {"metric": self.metric, "best": best, "without_gain": self._without_gain}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`; scores of another metric are discarded."""
        if state["metric"] != self.metric:
            warn(f"discarding scores of {state['metric']}: dev.metric is now {self.metric}")
            return
        self.best = None if state["best"] is None else BestStep(**state["best"])
        self._without_gain = state["without_gain"]
