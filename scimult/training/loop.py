"""The training loop: units into steps, callbacks at every step; knows no model and no file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import Unit
from scimult.errors import SciMultError
from scimult.training.engine import DeepSpeedEngine
from scimult.training.learned import LearnedParts, Values
from scimult.training.meter import Meter, Work, usage
from scimult.training.metrics import Sums, add_sums, total
from scimult.training.numbers import NumbersOnTheWay
from scimult.training.objective import PartResult, PartsObjective
from scimult.training.passes import (
    Graph,
    UnitTexts,
    activation_tokens,
    pass_in_chunks,
    pass_whole,
    unfused_head_width,
)
from scimult.training.stopping import StoppedError, StopRequest
from scimult.training.weighting import Weighting


@dataclass
class StepReport:
    """What one optimizer step did, over all ranks.

    ``accuracy`` is ``None`` without pairs, ``sums`` are those of the queries and papers of each
    task (`metrics.STATISTICS`), ``usage`` is what `meter.usage` returns, and ``gradient_norms``
    has the parts of the model, where they are kept. ``skipped_steps`` counts the updates that
    fp16 left out since the run began.
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
    sums: Sums = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0
    loss_scale: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Callback:
    """Reacts to the course of a run; every rank calls its callbacks in the same order."""

    def needs_model(self, step: int) -> bool:
        """Return whether `on_step` must see the model as this step leaves it; so on all ranks."""
        return False

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
class LaunchedStep:
    """A step that the device was told to do, with what its report needs; all else is read later."""

    step: int
    units: list[Unit]
    results: list[PartResult]
    numbers: NumbersOnTheWay
    work: Work
    lr: float
    skipped_steps: int
    loss_scale: float | None
    started: float


@dataclass(frozen=True)
class FailedStep:
    """What this rank had in hand when a step was not finite."""

    step: int
    units: list[Unit]
    results: list[PartResult]
    gradient_norm: float


class Trainer:
    """Runs planned units through the engine.

    Parameters
    ----------
    engine : DeepSpeedEngine
        Holds model and optimizer.
    objective : callable
        Turns embeddings into a loss.
    unit_at : callable
        Returns what this rank does in a unit, purely by number.
    routes_of_task : callable
        Returns the routes of a task's queries and candidates.
    weighting : Weighting
        Makes one number of the losses of a unit. Reports have the losses without weights.
    learned : LearnedParts
        What is trained beside the encoder.
    keep_failure : callable
        Writes down the batches of a step that was not finite, and returns the file's path;
        every rank calls it.
    stop_request : StopRequest
        Asked after every step; if any rank was told to stop, all do.
    meter : Meter
        Counts the work of every forward pass.
    is_over : callable
        Asked before every step whether enough were made; the same on all ranks.
    accumulation, seed : int
        Units per step; seed of dropout.
    reports_late : bool
        Whether the report of a step is read when the next one was begun, so that the device
        never waits for the host. Not where a callback needs the model of the step, nor
        at the last one. A step that is not finite is then found one step late.
    chunk_tokens : int or None
        Tokens whose activations may be held at once (`activation_tokens`); ``None``: those of a
        whole unit.
    callbacks : sequence of Callback
        Called in order after each step.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        objective: PartsObjective,
        unit_at: Callable[[int], Unit],
        routes_of_task: Callable[[str], Sequence[int]],
        *,
        weighting: Weighting,
        learned: LearnedParts,
        keep_failure: Callable[[FailedStep], Path],
        stop_request: StopRequest,
        meter: Meter,
        is_over: Callable[[], bool] = lambda: False,
        accumulation: int,
        chunk_tokens: int | None,
        seed: int,
        reports_late: bool = False,
        callbacks: Sequence[Callback],
    ) -> None:
        self._engine = engine
        self._objective = objective
        self._unit_at = unit_at
        self._routes_of_task = routes_of_task
        self._weighting = weighting
        self._learned = learned
        self._keep_failure = keep_failure
        self._stop_request = stop_request
        self._is_over = is_over
        self._meter = meter
        self._graph = Graph(meter.watching(engine.forward), engine.backward, engine.device)
        chunks = chunk_tokens is not None
        head_width = unfused_head_width(engine.model, engine.device) if chunks else None
        self._weigh = partial(activation_tokens, head_width=head_width)
        self._accumulation = accumulation
        self._chunk_tokens = chunk_tokens
        self._seed = seed
        self._reports_late = reports_late
        self._callbacks = callbacks
        self._reported = -math.inf

    def run(self, first_step: int, steps: int) -> int:
        """Do the steps from ``first_step`` (steps already done) up to ``steps``.

        Returns
        -------
        int
            Steps done, fewer than ``steps`` if ``is_over`` said so.

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
        done = first_step
        behind: LaunchedStep | None = None
        while done < steps and not self._is_over():
            launched = self._launch(done)
            if behind is not None:
                self._report(behind)
            done, behind = launched.step, launched
            if not self._may_wait(done, steps):
                self._report(launched)
                behind = None
            # After the callbacks: evaluating takes long enough for a request to come in it.
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

    def _launch(self, step: int) -> LaunchedStep:
        """Tell the device to do a step and to copy its numbers to the host; read none of them."""
        started = time.perf_counter()
        lr = self._engine.learning_rate
        units: list[Unit] = []
        results: list[PartResult] = []
        several = self._accumulation > 1 or self._chunk_tokens is not None
        with self._engine.one_reduction() if several else nullcontext():
            for number in range(step * self._accumulation, (step + 1) * self._accumulation):
                units.append(self._unit_at(number))
                results += self._pass(number, units[-1])
        tasks = {task for unit in units for task in unit.tasks}
        routes = {route for task in tasks for route in self._routes_of_task(task)}
        self._engine.step(frozenset({*routes, *self._learned.names(tasks)}))
        norm, squares_P = self._engine.gradient_norm, self._engine.take_squares()
        return LaunchedStep(
            step=step + 1,
            units=units,
            results=results,
            numbers=NumbersOnTheWay(results, norm, squares_P),
            work=self._meter.take(),
            lr=lr,
            skipped_steps=self._engine.skipped_steps,
            loss_scale=self._engine.loss_scale,
            started=started,
        )

    def _pass(self, number: int, unit: Unit) -> list[PartResult]:
        texts = UnitTexts.of(unit, self._routes_of_task)

        def loss_of(embeddings_UD: Tensor, learned: Values) -> tuple[Tensor, list[PartResult]]:
            results = self._objective(unit.parts, embeddings_UD, learned)
            loss = self._weighting(results, unit, embeddings_UD, learned)
            return loss / self._accumulation, results

        # Dropout depends on the unit, rank and chunk alone, so a resumed run draws the same.
        def seed_of_chunk(chunk: int) -> int:
            return _seed_of(self._seed, number, chunk)

        learned = partial(self._learned.values, unit.tasks)
        if self._chunk_tokens is None:
            torch.manual_seed(seed_of_chunk(0))
            return pass_whole(self._graph, texts, loss_of, learned)
        return pass_in_chunks(
            self._graph,
            texts,
            loss_of,
            learned,
            chunk_tokens=self._chunk_tokens,
            weigh=self._weigh,
            seed_of_chunk=seed_of_chunk,
        )

    def _report(self, launched: LaunchedStep) -> None:
        """Read the numbers of a step, on all ranks, and call the callbacks with them."""
        report = self._read(launched)
        for callback in self._callbacks:
            callback.on_step(report)

    def _read(self, launched: LaunchedStep) -> StepReport:
        numbers, results = launched.numbers.read(), launched.results
        tokens = sum(result.tokens for result in results)
        ranks = distributed.all_gather_objects((numbers, tokens, launched.work))
        sums = add_sums([rank.sums for rank, *_ in ranks])
        whole = total(sums)
        norms = [] if self._engine.scales_loss else [rank.gradient_norm for rank, *_ in ranks]
        # DeepSpeed calls some norms that are not finite -1.
        if not (math.isfinite(whole["loss"]) and all(math.isfinite(n) and n >= 0 for n in norms)):
            norm = numbers.gradient_norm
            self._stop(whole["loss"], FailedStep(launched.step, launched.units, results, norm))
        now = time.perf_counter()
        # The device began when it was told to, or when it was done with the step before.
        seconds = now - max(launched.started, self._reported)
        self._reported = now
        return StepReport(
            step=launched.step,
            tasks=[result.task for result in results],
            sources=[result.source for result in results],
            loss=whole["loss"],
            accuracy=whole.get("accuracy"),
            masked=sum(rank.masked for rank, *_ in ranks),
            tokens=sum(tokens for _, tokens, _ in ranks),
            seconds=seconds,
            lr=launched.lr,
            gradient_norm=numbers.gradient_norm,
            sums=sums,
            usage=usage([work for *_, work in ranks], seconds, self._meter.peak),
            gradient_norms=self._engine.gradient_norms(
                numbers.gradient_norm, [rank.squares_P for rank, *_ in ranks]
            ),
            skipped_steps=launched.skipped_steps,
            loss_scale=launched.loss_scale,
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


def _seed_of(seed: int, unit: int, chunk: int) -> int:
    words = np.random.SeedSequence([seed, unit, distributed.rank(), chunk]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1
