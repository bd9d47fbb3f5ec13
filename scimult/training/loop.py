"""The training loop: steps, reports and callbacks, independent of models and files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from scimult import distributed
from scimult.data.batches import MicroBatch
from scimult.errors import SciMultError
from scimult.training.meter import usage
from scimult.training.metrics import Sums, add_sums, total
from scimult.training.module import LaunchedStep, TrainModule
from scimult.training.objective import PartResult
from scimult.training.stopping import StoppedError, StopRequest


@dataclass
class StepReport:
    """Result of one optimizer step over all ranks.

    ``accuracy`` is ``None`` without pairs, ``sums`` has the statistics of each task's queries and
    papers (`metrics.STATISTICS`), ``ranks`` is their number, ``usage`` is the result of
    `meter.usage`, and ``gradient_norms`` has the parts of the model, if they are recorded.
    ``skipped_steps`` counts the updates that fp16 has skipped since the run began.
    """

    step: int
    tasks: list[str]
    sources: list[str]
    loss: float
    accuracy: float | None
    masked: int
    tokens: int
    seconds: float
    lr: float
    gradient_norm: float
    ranks: int = 1
    sums: Sums = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0
    loss_scale: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FailedStep:
    """Batches and results of this rank in a step that was not finite."""

    step: int
    micro_batches: list[MicroBatch]
    results: list[PartResult]
    gradient_norm: float


class Callback:
    """Reacts to the course of a run; every rank calls its callbacks in the same order."""

    def needs_model(self, step: int) -> bool:
        """Return whether `on_step` needs the model of exactly this step; equal on all ranks."""
        return False

    def on_start(self, metrics: dict[str, float]) -> None:
        """Run before the first step of a new run; may add to ``metrics``."""

    def on_step(self, report: StepReport) -> None:
        """Run after the step that ``report`` describes; may add to ``report.metrics``."""

    @property
    def is_over(self) -> bool:
        """Whether training should end; checked before every step, equal on all ranks."""
        return False

    def on_failure(self, failed: FailedStep) -> Path | None:
        """Run when a step was not finite; return the file that describes it, if one was written."""
        return None

    def on_stop(self, step: int) -> None:
        """Run after the last step of a run that was asked to stop early, before `on_end`."""

    def on_end(self) -> None:
        """Run once, after the last step."""


class NonFiniteError(SciMultError):
    """A loss or gradient became infinite or NaN."""


class Trainer:
    """Runs planned micro-batches step by step and reports every step to callbacks, in order.

    ``stop_request`` is checked after every step; if any rank was asked to stop, all do. With
    ``reports_late``, the report of a step is read after the next one has begun, so that the device
    never waits for the host; except at the last step and where a callback needs the step's model.
    A non-finite step is then found one step late.
    """

    def __init__(
        self,
        module: TrainModule,
        micro_batch_at: Callable[[int], MicroBatch],
        stop_request: StopRequest,
        callbacks: Sequence[Callback],
        reports_late: bool = False,
    ) -> None:
        self._module = module
        self._micro_batch_at = micro_batch_at
        self._stop_request = stop_request
        self._callbacks = callbacks
        self._reports_late = reports_late
        self._reported = -math.inf

    def run(self, first_step: int, steps: int) -> int:
        """Do the steps from ``first_step`` (steps already done) up to ``steps``.

        Returns the steps done, fewer than ``steps`` if a callback ended training.

        Raises
        ------
        NonFiniteError
            On every rank, if the loss or gradient of a step is not finite.
        StoppedError
            On every rank, if one was asked to stop before the last step.
        """
        if first_step == 0:
            metrics: dict[str, float] = {}
            for callback in self._callbacks:
                callback.on_start(metrics)
        done = first_step
        behind: LaunchedStep | None = None
        while done < steps and not any(callback.is_over for callback in self._callbacks):
            launched = self._module.launch(done, self._micro_batch_at)
            if behind is not None:
                self._report(behind)
            done, behind = launched.step, launched
            if not self._may_wait(done, steps):
                self._report(launched)
                behind = None
            # After the callbacks, because a request may arrive during an evaluation.
            signals = distributed.all_gather_objects(self._stop_request.signal)
            if any(signals) and done < steps:
                if behind is not None:
                    self._report(behind)
                self._leave(done, max(signals))
        for callback in self._callbacks:
            callback.on_end()
        return done

    def _may_wait(self, step: int, steps: int) -> bool:
        """Return whether the next step may begin before the report of this one is read."""
        if not self._reports_late or step == steps:
            return False
        return not any(callback.needs_model(step) for callback in self._callbacks)

    def _leave(self, step: int, number: int) -> NoReturn:
        for callback in self._callbacks:
            callback.on_stop(step)
        for callback in self._callbacks:
            callback.on_end()
        raise StoppedError(f"step {step}", number)

    def _report(self, launched: LaunchedStep) -> None:
        """Read the numbers of a step on all ranks and pass them to the callbacks."""
        report = self._read(launched)
        for callback in self._callbacks:
            callback.on_step(report)

    def _read(self, launched: LaunchedStep) -> StepReport:
        engine, results = self._module.engine, launched.results
        numbers = launched.numbers.read()
        tokens = sum(result.tokens for result in results)
        ranks = distributed.all_gather_objects((numbers, tokens, launched.work))
        sums = add_sums([rank.sums for rank, *_ in ranks])
        means = total(sums)
        norms = [] if engine.scales_loss else [rank.gradient_norm for rank, *_ in ranks]
        # DeepSpeed reports some non-finite norms as -1.
        if not (math.isfinite(means["loss"]) and all(math.isfinite(n) and n >= 0 for n in norms)):
            norm = numbers.gradient_norm
            self._fail(
                means["loss"], FailedStep(launched.step, launched.micro_batches, results, norm)
            )
        now = time.perf_counter()
        # The device began at the launch, or when it had finished the step before.
        seconds = now - max(launched.started, self._reported)
        self._reported = now
        return StepReport(
            step=launched.step,
            tasks=[result.task for result in results],
            sources=[result.source for result in results],
            loss=means["loss"],
            accuracy=means.get("accuracy"),
            masked=sum(rank.masked for rank, *_ in ranks),
            tokens=sum(tokens for _, tokens, _ in ranks),
            seconds=seconds,
            lr=launched.lr,
            gradient_norm=numbers.gradient_norm,
            ranks=len(ranks),
            sums=sums,
            usage=usage([work for *_, work in ranks], seconds, self._module.meter.peak),
            gradient_norms=engine.gradient_norms(
                numbers.gradient_norm, [rank.squares_P for rank, *_ in ranks]
            ),
            skipped_steps=launched.skipped_steps,
            loss_scale=launched.loss_scale,
        )

    def _fail(self, loss: float, failed: FailedStep) -> NoReturn:
        paths = [callback.on_failure(failed) for callback in self._callbacks]
        quantity = "gradient norm" if math.isfinite(loss) else "loss"
        raise NonFiniteError(
            f"{quantity} is not finite at step {failed.step}; this file lists its texts",
            path=next((path for path in paths if path is not None), None),
            fix="look for broken texts, lower optimizer.lr, raise loss.temperature or use another "
            "precision; the last checkpoint is intact",
        )
