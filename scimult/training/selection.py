"""Select the best step by a dev score, and stop training when it no longer improves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scimult import distributed
from scimult.progress import note, warn
from scimult.training.config import DevConfig
from scimult.training.loop import Callback, StepReport

_COMPARED = ("metric", "queries", "candidates", "seed")


@dataclass(frozen=True)
class BestStep:
    """A step and its score."""

    step: int
    score: float


class Selection(Callback):
    """Tracks one dev score; higher is better, and the first of equals stays the best.

    Training ends after ``dev.patience`` evaluations in a row without a better score; ``keep_best``
    requests a checkpoint of each new best step.
    """

    def __init__(self, dev: DevConfig, keep_best: bool) -> None:
        self.metric = dev.metric
        self.best: BestStep | None = None
        # What scores depend on.
        self._compared = {name: getattr(dev, name) for name in _COMPARED}
        self._patience, self._keep_best = dev.patience, keep_best
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
        state = {"best": best, "without_gain": self._without_gain, "keep_best": self._keep_best}
        return self._compared | state

    def restore(self, state: Mapping[str, Any], is_kept: Callable[[int], bool]) -> None:
        """Restore a `state`, unless its scores or its best step are of no use.

        Those are scores that were measured otherwise, and a step before ``keep_best`` was turned on
        whose checkpoint is gone, which ``is_kept`` tells on every rank.
        """
        for name, now in self._compared.items():
            before = state.get(name, now)  # older versions saved the metric alone
            if before != now:
                warn(f"discarding scores: dev.{name} was {before}, now it is {now}")
                return
        best = None if state["best"] is None else BestStep(**state["best"])
        turned_on = self._keep_best and not state.get("keep_best", True)
        if turned_on and best is not None and not is_kept(best.step):
            warn(f"discarding scores: the best step, {best.step}, was not kept")
            return
        self.best, self._without_gain = best, state["without_gain"]
