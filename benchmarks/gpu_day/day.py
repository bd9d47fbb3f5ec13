"""What a call has and leaves behind: its folders, its device, and the lines of ``day.jsonl``.

Standard library alone: the machine may lack what the steps need until `provide` installs it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LINES = "day.jsonl"
REPOSITORY = Path(__file__).resolve().parents[2]


class DayError(Exception):
    """The user can mend it: ends the command with one line."""


@dataclass(frozen=True)
class Day:
    """One call: where things are, and how large they may be.

    Attributes
    ----------
    out : Path
        Gets ``day.jsonl``, ``report.md`` and little else.
    work : Path
        Gets packages, data, models and runs; may be deleted afterwards.
    bundle : Path or None
        What `bundle.make_bundle` wrote, or a folder with the same content.
    device : str
        ``cuda`` or ``cpu``.
    dry : bool
        Small sizes, to see that every step runs; the figures say nothing.
    ends : float
        When the step's box is over, by ``time.monotonic()``.
    """

    out: Path
    work: Path
    bundle: Path | None
    device: str
    dry: bool
    ends: float = math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds until the step is ended."""
        return self.ends - time.monotonic()

    @property
    def inputs(self) -> Path:
        """Folder of model, prepared data and evaluation sets that all steps share."""
        return self.work / "inputs"

    @property
    def packages(self) -> Path:
        """Folder of the packages that the bundle brought."""
        return self.work / "site"

    def size(self, full: T, small: T) -> T:
        """Return what a step does on a GPU machine, or in a dry run."""
        return small if self.dry else full

    def write(self, step: str, **content: Any) -> None:
        """Append one line to ``day.jsonl``; it is on disk when this returns."""
        self.out.mkdir(parents=True, exist_ok=True)
        line = {"step": step, "at": round(time.time(), 1), "dry": self.dry, **content}
        with (self.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def note(self, step: str, **found: Any) -> None:
        """Append one finding of a step."""
        self.write(step, found=found)


def read_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a folder's ``day.jsonl``; one that was cut short is left out.

    Raises
    ------
    DayError
        If there is no such file.
    """
    path = folder / LINES if folder.is_dir() else folder
    if not path.is_file():
        raise DayError(f"no {LINES} there: {path}. Fix: name the folder given as --out")
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
