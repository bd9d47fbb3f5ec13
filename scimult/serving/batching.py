"""Batching over requests: one thread per core encodes the waiting texts of all requests together.

Shape legend: R routes, N texts, D width.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scimult.inference import SciMult
from scimult.models.embed import CPU_TOKENS, LEAST_TOKENS
from scimult.retrieval.embeddings import check_finite, unit_rows
from scimult.serving.refusals import Refusal
from scimult.types import FloatArray, Text, TokenIds

DEADLINE: ContextVar[float] = ContextVar("deadline")
"""When the caller of this thread stops waiting, on the clock ``time.monotonic``."""
Run = Callable[[Sequence[TokenIds], Sequence[int]], FloatArray]


@dataclass
class _Job:
    tokens: Sequence[TokenIds]
    routes: tuple[int, ...]
    done: Future[FloatArray] = field(default_factory=Future)

    @cached_property
    def size(self) -> int:
        return sum(map(len, self.tokens))


class Passes:
    """Runs waiting jobs in a few threads, batching those with the same routes.

    ``run`` turns token ids and routes into vectors, shape ``(R, N, D)``. Waiting jobs are split
    among ``threads``; those of more than ``most_tokens`` take several passes, interleaved with
    others. A caller waits for ``patience`` seconds; ``observe`` is called with the numbers of
    texts and tokens of every pass.
    """

    def __init__(
        self,
        run: Run,
        *,
        most_tokens: int = CPU_TOKENS,
        threads: int = 1,
        patience: float = 60.0,
        observe: Callable[[int, int], None] = lambda texts, tokens: None,
    ) -> None:
        self._run, self._most, self._patience, self._observe = run, most_tokens, patience, observe
        self._waiting: deque[_Job] = deque()
        self._closed, self._condition = False, threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"encoder-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def encode(self, tokens: Sequence[TokenIds], routes: Sequence[int]) -> FloatArray:
        """Return the vectors of texts for each route, shape ``(R, N, D)``.

        Raises
        ------
        Refusal
            If they are not ready in time, or before the caller's deadline (504).
        """
        count = len(self._threads)
        jobs = [_Job(part, tuple(routes)) for part in self._parts(tokens)]
        # Submit one part per thread at a time, so that other callers get their turn in between.
        turns = [jobs[start : start + count] for start in range(0, len(jobs), count)]
        parts = [part for turn in turns for part in self._submit(turn)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def close(self) -> None:
        """End the threads after all waiting jobs; later callers encode in their own thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _submit(self, jobs: Sequence[_Job]) -> list[FloatArray]:
        """Queue jobs and wait for their results."""
        left = DEADLINE.get(float("inf")) - time.monotonic()
        if left <= 0:
            raise _late()
        with self._condition:
            closed = self._closed
            if not closed:
                self._waiting.extend(jobs)
                self._condition.notify(len(jobs))
        if closed:
            return [self._run(job.tokens, job.routes) for job in jobs]
        end = time.monotonic() + min(left, self._patience)
        try:
            return [job.done.result(max(0.0, end - time.monotonic())) for job in jobs]
        except Late:
            for job in jobs:
                job.done.cancel()
            raise _late() from None

    def _parts(self, tokens: Sequence[TokenIds]) -> Iterator[Sequence[TokenIds]]:
        most = self._share(sum(map(len, tokens)))
        start, size = 0, 0
        for index, ids in enumerate(tokens):
            if index > start and size + len(ids) > most:
                yield tokens[start:index]
                start, size = index, 0
            size += len(ids)
        yield tokens[start:]

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closed:
                    self._condition.wait()
                if not self._waiting:
                    return
                jobs = self._next()
            if jobs:
                self._finish(jobs)

    def _next(self) -> list[_Job]:
        """Take the oldest job, and others with its routes that fit into this thread's share."""
        most = self._share(sum(job.size for job in self._waiting))
        jobs: list[_Job] = []
        size, left = 0, deque[_Job]()
        while self._waiting:
            job = self._waiting.popleft()
            if job.done.cancelled():
                continue
            first = not jobs
            fits = first or (job.routes == jobs[0].routes and size + job.size <= most)
            if not fits:
                left.append(job)
            elif job.done.set_running_or_notify_cancel():
                jobs.append(job)
                size += job.size
        self._waiting = left
        return jobs

    def _share(self, tokens: int) -> int:
        """Return how many of the tokens one thread takes."""
        return min(self._most, max(-(-tokens // len(self._threads)), LEAST_TOKENS))

    def _finish(self, jobs: Sequence[_Job]) -> None:
        """Run jobs in one pass, or if that fails, each alone: only their own texts fail them."""
        tokens = [ids for job in jobs for ids in job.tokens]
        try:
            vectors_RND = self._run(tokens, jobs[0].routes)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
                return
            vectors_RND = None  # beyond this block, where the error keeps the pass's memory
        if vectors_RND is None:
            for job in jobs:
                self._finish([job])
            return
        self._observe(len(tokens), sum(map(len, tokens)))
        start = 0
        for job in jobs:
            end = start + len(job.tokens)
            # A copy, so that keeping one answer does not keep the whole pass in memory.
            job.done.set_result(vectors_RND[:, start:end].copy())
            start = end


def _late() -> Refusal:
    fix = "send fewer or shorter texts, or try again when the service is less busy"
    return Refusal(504, "the texts were not encoded in time", fix=fix)


class SharedModel(SciMult):
    """A model whose `encode` shares passes with calls from other threads.

    Results equal those of the model alone, up to the rounding of float32 products, whose order
    depends on the other texts in a pass. The model must not be used otherwise from now on.
    """

    def __init__(self, model: SciMult, **passes: Any) -> None:
        super().__init__(
            model._pretrained,
            name=model.name,
            device=model.device,
            dtype=model.dtype,
            max_tokens_per_batch=model._max_tokens,
        )
        self._passes = Passes(self._embed_tokens, **passes)

    def close(self) -> None:
        """End the threads; the model remains usable."""
        self._passes.close()

    def _embed(
        self,
        texts: Sequence[Text],
        routes: Sequence[int],
        instead: Mapping[int, TokenIds],
        show_progress: bool,
    ) -> FloatArray:
        if not texts or instead:
            return super()._embed(texts, routes, instead, show_progress)
        vectors_RND = self._passes.encode(self._tokenise(texts), routes)
        for vectors_ND in vectors_RND:
            check_finite(vectors_ND, f"{self.name} in {self.dtype}")
            if self.unit_vectors:
                vectors_ND[:] = unit_rows(vectors_ND)
        return vectors_RND
