"""The training loop: units into steps, callbacks at every step; knows no model and no file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from scimult import distributed
from scimult.data.batches import Batch
from scimult.errors import SciMultError
from scimult.training.engine import DeepSpeedEngine
from scimult.training.meter import Meter, usage
from scimult.training.metrics import Sums, add_sums
from scimult.training.objective import ContrastiveObjective, UnitResult
from scimult.training.stopping import StoppedError, StopRequest


@dataclass
class StepReport:
    """What one optimizer step did, over all ranks.

    ``sums`` are those of the queries of each task (`metrics.query_statistics`), ``usage`` is
    what `meter.usage` returns, and ``gradient_norms`` has the parts of the model, where they
    are kept. ``skipped_steps`` counts the updates that fp16 left out since the run began.
    """

    step: int
    tasks: list[str]
    sources: list[str]
    loss: float
    accuracy: float
    masked: int
    tokens: int
    seconds: float
    lr: float
    gradient_norm: float
    sums: Sums = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0
    loss_scale: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Callback:
    """Reacts to the course of a run; every rank calls its callbacks in the same order."""

    def on_start(self, metrics: dict[str, float]) -> None:
        """Run before the first step of a new run; may add to ``metrics``."""

    def on_step(self, report: StepReport) -> None:
        """Run after the step that ``report`` describes; may add to ``report.metrics``."""

    def on_stop(self, step: int) -> None:
        """Run after the last step of a run that was asked to stop early, before `on_end`."""

    def on_end(self) -> None:
        """Run once, after the last step."""


class NonFiniteError(SciMultError):
    """The loss or the gradient became infinite or NaN."""


@dataclass(frozen=True)
class FailedStep:
    """What this rank had in hand when a step was not finite."""

    step: int
    batches: list[Batch]
    losses: list[float]
    gradient_norm: float


class Trainer:
    """Runs planned units through the engine.

    Parameters
    ----------
    engine : DeepSpeedEngine
        Holds model and optimizer.
    objective : ContrastiveObjective
        Turns a batch into a loss.
    batch_of_unit : callable
        Returns this rank's batch of a unit, purely by number.
    routes_of_task : callable
        Returns the routes of a task's queries and candidates.
    weight_of_task : callable
        Returns the number that the losses of a task are multiplied with. Reports have the
        losses without it.
    keep_failure : callable
        Writes down the batches of a step that was not finite, and returns the file's path;
        every rank calls it.
    stop_request : StopRequest
        Asked after every step; if any rank was told to stop, all do.
    meter : Meter
        Counts the work of every forward pass.
    rows_per_unit, accumulation, seed : int
        Queries of a unit over all ranks; units per step; seed of dropout.
    callbacks : sequence of Callback
        Called in order after each step.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        objective: ContrastiveObjective,
        batch_of_unit: Callable[[int], Batch],
        routes_of_task: Callable[[str], Sequence[int]],
        *,
        weight_of_task: Callable[[str], float],
        keep_failure: Callable[[FailedStep], Path],
        stop_request: StopRequest,
        meter: Meter,
        rows_per_unit: int,
        accumulation: int,
        seed: int,
        callbacks: Sequence[Callback],
    ) -> None:
        self._engine = engine
        self._objective = objective
        self._batch_of_unit = batch_of_unit
        self._routes_of_task = routes_of_task
        self._weight_of_task = weight_of_task
        self._keep_failure = keep_failure
        self._stop_request = stop_request
        self._meter = meter
        self._forward = meter.watching(engine.forward)
        self._rows_per_unit = rows_per_unit
        self._accumulation = accumulation
        self._seed = seed
        self._callbacks = callbacks

    def run(self, first_step: int, steps: int) -> None:
        """Do the steps from ``first_step`` (steps already done) up to ``steps``.

        Raises
        ------
        NonFiniteError
            On every rank, if loss or gradient of a step are not finite.
        StoppedError
            On every rank, if one was asked to stop before the last step.
        """
        if first_step == 0:
            metrics: dict[str, float] = {}
            for callback in self._callbacks:
                callback.on_start(metrics)
        for step in range(first_step, steps):
            report = self._step(step)
            for callback in self._callbacks:
                callback.on_step(report)
            # After the callbacks: evaluating takes long enough for a request to come in it.
            signals = distributed.all_gather_objects(self._stop_request.signal)
            if any(signals) and report.step < steps:
                self._leave(report.step, max(signals))
        for callback in self._callbacks:
            callback.on_end()

    def _leave(self, step: int, number: int) -> NoReturn:
        for callback in self._callbacks:
            callback.on_stop(step)
        for callback in self._callbacks:
            callback.on_end()
        raise StoppedError(step, number)

    def _step(self, step: int) -> StepReport:
        started = time.perf_counter()
        lr = self._engine.learning_rate
        results: list[UnitResult] = []
        batches: list[Batch] = []
        active: set[int] = set()
        for unit in range(step * self._accumulation, (step + 1) * self._accumulation):
            batch = self._batch_of_unit(unit)
            routes = self._routes_of_task(batch.task)
            active.update(routes)
            # Dropout depends on the unit and rank alone, so a resumed run draws the same.
            torch.manual_seed(_unit_seed(self._seed, unit))
            result = self._objective(self._forward, batch, routes, self._rows_per_unit)
            self._engine.backward(result.loss * self._weight_of_task(batch.task))
            self._engine.step(frozenset(active))
            results.append(result)
            batches.append(batch)
        return self._report(step + 1, batches, results, lr, started)

    def _report(
        self,
        step: int,
        batches: list[Batch],
        results: list[UnitResult],
        lr: float,
        started: float,
    ) -> StepReport:
        norm = self._engine.gradient_norm
        totals = torch.tensor(
            [
                [float(r.loss.detach()), float(r.accuracy), float(r.masked), float(r.tokens)]
                for r in results
            ],
            dtype=torch.float64,
        )
        sums, work = add_sums([result.sums for result in results]), self._meter.take()
        gathered = distributed.all_gather_objects((totals.sum(0), norm, sums, work))
        per_rank = torch.stack([totals for totals, *_ in gathered])
        units = len(results)
        loss = float(per_rank[:, 0].mean()) / units
        norms = [] if self._engine.scales_loss else [value for _, value, *_ in gathered]
        # DeepSpeed calls some norms that are not finite -1.
        if not (math.isfinite(loss) and all(math.isfinite(n) and n >= 0 for n in norms)):
            self._stop(loss, FailedStep(step, batches, totals[:, 0].tolist(), norm))
        gradient_norms = self._engine.gradient_norms()
        seconds = time.perf_counter() - started
        return StepReport(
            step=step,
            tasks=[batch.task for batch in batches],
            sources=[batch.source for batch in batches],
            loss=loss,
            accuracy=float(per_rank[:, 1].mean()) / units,
            masked=int(per_rank[:, 2].sum()),
            tokens=int(per_rank[:, 3].sum()),
            seconds=seconds,
            lr=lr,
            gradient_norm=norm,
            sums=add_sums([sums for _, _, sums, _ in gathered]),
            usage=usage([work for *_, work in gathered], seconds, self._meter.peak),
            gradient_norms=gradient_norms,
            skipped_steps=self._engine.skipped_steps,
            loss_scale=self._engine.loss_scale,
        )

    def _stop(self, loss: float, failed: FailedStep) -> NoReturn:
        path = self._keep_failure(failed)
        what = "gradient norm" if math.isfinite(loss) else "loss"
        raise NonFiniteError(
            f"{what} is not finite at step {failed.step}; the texts of its batches are listed here",
            path=path,
            fix="look for broken texts, lower optimizer.lr, raise loss.temperature or use another "
            "precision; the last checkpoint is intact",
        )


def _unit_seed(seed: int, unit: int) -> int:
    words = np.random.SeedSequence([seed, unit, distributed.rank()]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1
