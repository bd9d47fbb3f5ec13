"""Run one of our scripts and count, by line, where its training steps wait for the GPU.

``python -m benchmarks.gpu_day.waits COUNTS.json SCRIPT [ARGUMENT]...``. torch itself warns where
an operation waits; explicit synchronisation is counted too. The first steps do not count, as they
compile kernels and fill caches.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
import warnings
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu_day.day import REPOSITORY

WARNING = "called a synchronizing CUDA operation"
_FIRST_STEPS = 2


class Waits:
    """Counts waits after the first steps; writes them after every later update.

    Parameters
    ----------
    path : Path
        JSON file: number of counted ``steps``, and ``places`` (lines) with their numbers of waits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._updates = 0
        self._counts: Counter[str] = Counter()

    def waited(self, at: str) -> None:
        """Count a wait by our line that led to it and the line ``at`` that caused it."""
        ours = [
            f"{Path(frame.filename).relative_to(REPOSITORY)}:{frame.lineno}"
            for frame in traceback.extract_stack()
            if Path(frame.filename).is_relative_to(REPOSITORY / "scimult")
        ]
        self._counts[f"{ours[-1] if ours else 'outside'} ({at})"] += 1

    def updated(self) -> None:
        """Register the update of a step."""
        self._updates += 1
        if self._updates <= _FIRST_STEPS:
            self._counts.clear()
            return
        content = {"steps": self._updates - _FIRST_STEPS, "places": self._counts.most_common()}
        self._path.write_text(json.dumps(content), encoding="utf-8")


def watch(waits: Waits) -> None:
    """Register every wait and every update of this process in ``waits`` from now on."""
    import torch

    from scimult.training.engine import DeepSpeedEngine

    show = warnings.showwarning

    def count_or_show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if WARNING in str(message):
            waits.waited(f"{Path(filename).name}:{lineno}")
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = count_or_show
    warnings.filterwarnings("always", message=f".*{WARNING}")
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("warn")
    synchronise, update = torch.cuda.synchronize, DeepSpeedEngine.step

    @wraps(synchronise)
    def synchronised(*arguments: Any, **options: Any) -> None:
        waits.waited("torch.cuda.synchronize")
        synchronise(*arguments, **options)

    @wraps(update)
    def updated(engine: DeepSpeedEngine, active: frozenset[int | str]) -> None:
        update(engine, active)
        waits.updated()

    torch.cuda.synchronize = synchronised
    DeepSpeedEngine.step = updated  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    counts, script, *rest = sys.argv[1:]
    watch(Waits(Path(counts)))
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")
