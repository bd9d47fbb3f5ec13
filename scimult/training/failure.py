"""Diagnose failing runs: the texts of a non-finite step, the stack of a hanging rank."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scimult import distributed
from scimult.data.batches import Part, TargetBatch
from scimult.files import write_json
from scimult.training.loop import Callback, FailedStep, StepReport
from scimult.types import IntArray


class FailureFile(Callback):
    """Writes each rank's losses, gradient norm and text ids to ``not_finite_step_N.json``."""

    def __init__(self, folder: Path, ids_at: Callable[[IntArray], list[str]]) -> None:
        self._folder, self._ids_at = folder, ids_at

    def on_failure(self, failed: FailedStep) -> Path:
        """Write the batches of all ranks; every rank returns after the file exists."""
        path = self._folder / f"not_finite_step_{failed.step}.json"
        ranks = distributed.all_gather_objects(_describe(failed, self._ids_at))
        if distributed.is_main():
            write_json(path, {"step": failed.step, "ranks": ranks})
        distributed.barrier()
        return path


def _describe(failed: FailedStep, ids_at: Callable[[IntArray], list[str]]) -> dict[str, Any]:
    """Return the failed step in JSON values; numbers, which may not be finite, become strings."""
    batches = [batch for micro_batch in failed.micro_batches for batch in micro_batch.parts]
    parts = []
    for batch, result in zip(batches, failed.results, strict=True):
        loss = str(float(result.loss.detach()) / max(result.pairs, 1))
        described = {"source": batch.source, "task": batch.task, "loss": loss}
        parts.append(described | _texts(batch, ids_at))
    return {"gradient_norm": str(failed.gradient_norm), "parts": parts}


def _texts(batch: Part, ids_at: Callable[[IntArray], list[str]]) -> dict[str, list[str]]:
    if isinstance(batch, TargetBatch):
        return {"papers": ids_at(batch.text_ids_B.numpy())}
    candidates = ids_at(batch.candidate_ids_C.numpy())
    positives = len(batch.query_ids_B)
    return {
        "queries": ids_at(batch.query_ids_B.numpy()),
        "positives": candidates[:positives],
        "hard_negatives": candidates[positives:],
    }


# Ranks give up within moments of each other, and a launcher kills the others when one exits.
_SECONDS_TO_REPORT = 2.0
_WAITS = 100


class Watchdog(Callback):
    """Ends this process when ``seconds`` pass without the end of a step.

    Evaluation and checkpoint belong to a step.

    A rank that waits for another cannot know why. Every rank therefore watches itself and prints
    its stack before it exits: the stack of the hanging one shows where.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._alive = threading.Event()
        self._done = False
        self._last = "before its first step"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block ends."""
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done = True
            self._alive.set()
            thread.join()

    def on_step(self, report: StepReport) -> None:
        """Restart the clock."""
        self._last = f"after step {report.step}"
        self._alive.set()

    def _watch(self) -> None:
        while not self._done:
            # Time does not count in which this process is suspended, except for one of the waits.
            if not any(self._alive.wait(self._seconds / _WAITS) for _ in range(_WAITS)):
                self._give_up()
            self._alive.clear()

    def _give_up(self) -> None:
        sys.stderr.write(
            f"error: rank {distributed.rank()} on {socket.gethostname()} hangs {self._last}: no "
            f"step ended within {self._seconds / 60:g} minutes (engine.timeout_minutes). "
            "Ranks in a collective are waiting for one that is elsewhere. The same command "
            "continues from the newest checkpoint. Stack:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        threading.Event().wait(_SECONDS_TO_REPORT)
        os._exit(1)
