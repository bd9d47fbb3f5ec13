"""One optimizer step: build micro-batches ahead, encode them, compute the loss, update.

Shape legend: U distinct texts of a micro-batch on this rank, D width, S statistics of queries
(`metrics.STATISTICS`), P parts of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import MicroBatch
from scimult.training.engine import DeepSpeedEngine
from scimult.training.learned import LearnedParts, Values
from scimult.training.meter import Meter, Work
from scimult.training.metrics import Sums, add_sums
from scimult.training.objective import PartResult, PartsObjective
from scimult.training.passes import (
    Graph,
    MicroBatchTexts,
    activation_tokens,
    pass_in_chunks,
    pass_whole,
    routes_of_parts,
    unfused_head_width,
)
from scimult.training.weighting import Weighting


@dataclass(frozen=True)
class StepNumbers:
    """One rank's numbers of a step.

    ``sums`` are statistics of its queries by task, ``masked`` counts columns, ``squares_P`` is its
    share of the squared gradient norms of the model's parts, if they are recorded.
    """

    sums: Sums
    masked: int
    gradient_norm: float
    squares_P: list[float]


class PendingNumbers:
    """Copies a step's `StepNumbers` to the host asynchronously, and waits only when they are read.

    The copies are queued between this step's work and the next one's, so that the device
    continues while the host reads them.
    """

    def __init__(
        self, results: Sequence[PartResult], gradient_norm: Tensor, squares_P: Tensor
    ) -> None:
        self._tasks = [result.task for result in results]
        statistics = torch.stack([result.statistics_S for result in results])
        masked = torch.stack([result.masked for result in results])
        # Asynchronous copies from a GPU go to pinned memory.
        self._copies = [
            values.detach().to("cpu", torch.float64, non_blocking=True)
            for values in (statistics, masked, gradient_norm, squares_P)
        ]
        self._arrived: torch.cuda.Event | None = None
        if statistics.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def read(self) -> StepNumbers:
        """Return the numbers, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        statistics, masked, norm, squares_P = self._copies
        by_part = [
            {task: sums} for task, sums in zip(self._tasks, statistics.tolist(), strict=True)
        ]
        return StepNumbers(
            add_sums(by_part), int(masked.sum()), float(norm), list(squares_P.tolist())
        )


@dataclass(frozen=True)
class LaunchedStep:
    """A step that has been queued on the device, with everything its report needs."""

    step: int
    micro_batches: list[MicroBatch]
    results: list[PartResult]
    numbers: PendingNumbers
    work: Work
    lr: float
    skipped_steps: int
    loss_scale: float | None
    started: float


class TrainModule:
    """Does optimizer steps: engine, objective and loss weighting of a run.

    Reports have unweighted losses. ``accumulation`` counts micro-batches per step,
    ``chunk_tokens`` limits the activations held at once (`activation_tokens`; ``None``: those of a
    whole micro-batch), and ``seed`` is that of dropout.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        routes_of_task: Callable[[str], Sequence[int]],
        objective: PartsObjective,
        weighting: Weighting,
        learned: LearnedParts,
        meter: Meter,
        *,
        accumulation: int,
        chunk_tokens: int | None,
        seed: int,
    ) -> None:
        self.engine, self.meter, self.weighting, self.learned = engine, meter, weighting, learned
        self._routes_of_task = routes_of_task
        self._objective = objective
        self._graph = Graph(meter.watching(engine.forward), engine.backward, engine.device)
        self._accumulation = accumulation
        self._chunk_tokens = chunk_tokens
        chunks = chunk_tokens is not None
        head_width = unfused_head_width(engine.model, engine.device) if chunks else None
        self._weigh = partial(activation_tokens, head_width=head_width)
        self._seed = seed

    def launch(self, step: int, micro_batch_at: Callable[[int], MicroBatch]) -> LaunchedStep:
        """Queue a step and the copy of its numbers to the host, without reading them.

        ``step`` steps are already done; ``micro_batch_at`` returns this rank's share of a
        micro-batch, by number.
        """
        started, engine = time.perf_counter(), self.engine
        lr = engine.learning_rate
        micro_batches: list[MicroBatch] = []
        results: list[PartResult] = []
        several = self._accumulation > 1 or self._chunk_tokens is not None
        with engine.one_reduction() if several else nullcontext():
            for number in range(step * self._accumulation, (step + 1) * self._accumulation):
                micro_batches.append(micro_batch_at(number))
                results += self._pass(number, micro_batches[-1])
        tasks = {task for micro_batch in micro_batches for task in micro_batch.tasks}
        routes = [routes_of_parts(each, self._routes_of_task) for each in micro_batches]
        engine.step(frozenset().union(*routes, self.learned.names(tasks)))
        return LaunchedStep(
            step=step + 1,
            micro_batches=micro_batches,
            results=results,
            numbers=PendingNumbers(results, engine.gradient_norm, engine.take_squares()),
            work=self.meter.take(),
            lr=lr,
            skipped_steps=engine.skipped_steps,
            loss_scale=engine.loss_scale,
            started=started,
        )

    def _pass(self, number: int, micro_batch: MicroBatch) -> list[PartResult]:
        texts = MicroBatchTexts.of(micro_batch, self._routes_of_task)

        def loss_of(embeddings_UD: Tensor, learned: Values) -> tuple[Tensor, list[PartResult]]:
            results = self._objective(micro_batch.parts, embeddings_UD, learned)
            loss = self.weighting(results, micro_batch, embeddings_UD, learned)
            return loss / self._accumulation, results

        # Depends only on micro-batch, rank and chunk, so that a resumed run draws the same dropout.
        def seed_of_chunk(chunk: int) -> int:
            entropy = [self._seed, number, distributed.rank(), chunk]
            words = np.random.SeedSequence(entropy).generate_state(2)
            return int(words[0]) << 31 | int(words[1]) >> 1

        learned = partial(self.learned.values, micro_batch.tasks)
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


class MicroBatchesAhead:
    """Builds ``micro_batches`` in a thread, one ahead of the last one requested.

    A GPU would otherwise wait at every step while the host reads texts and looks up known
    positives: milliseconds, as long as a small encoder's step. All calls go through the one
    thread, so that ``micro_batch_at``, a pure function of the number, never runs concurrently.
    """

    def __init__(self, micro_batch_at: Callable[[int], MicroBatch], micro_batches: int) -> None:
        self._micro_batch_at = micro_batch_at
        self._micro_batches = micro_batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="micro-batches")
        self._ahead: dict[int, Future[MicroBatch]] = {}

    def __call__(self, number: int) -> MicroBatch:
        """Return a micro-batch, or raise the error of building it."""
        requested = self._ahead.get(number) or self._thread.submit(self._micro_batch_at, number)
        self._ahead = {}
        if number + 1 < self._micro_batches:
            self._ahead[number + 1] = self._thread.submit(self._micro_batch_at, number + 1)
        return requested.result()
