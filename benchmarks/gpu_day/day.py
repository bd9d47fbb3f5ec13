"""The state of a call: its folders, its device, and the lines of ``day.jsonl``.

Only the standard library: the machine may lack packages until `provide` installs them.
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
    """An error that the user can fix; ends the command with one line."""


@dataclass(frozen=True)
class Day:
    """Settings of one call.

    Attributes
    ----------
    out : Path
        Folder for ``day.jsonl`` and ``report.md``.
    work : Path
        Folder for packages, data, models and runs; may be deleted afterwards.
    bundle : Path or None
        Archive of `bundle.make_bundle`, or a folder with the same content.
    device : str
        ``cuda`` or ``cpu``.
    dry : bool
        Use small sizes, to test that every step runs; the figures mean nothing.
    ends : float
        End of the step's time limit, by ``time.monotonic()``.
    """

    out: Path
    work: Path
    bundle: Path | None
    device: str
    dry: bool
    ends: float = math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds until the step is killed."""
        return self.ends - time.monotonic()

    @property
    def inputs(self) -> Path:
        """Folder of the model, prepared data and evaluation sets of all steps."""
        return self.work / "inputs"

    @property
    def packages(self) -> Path:
        """Folder of the packages from the bundle."""
        return self.work / "site"

    @property
    def flash(self) -> Path:
        """Folder of the substitute for flash-attn."""
        return self.work / "flash"

    def size(self, full: T, small: T) -> T:
        """Return ``full``, or ``small`` in a dry run."""
        return small if self.dry else full

    def write(self, step: str, **content: Any) -> None:
        """Append one line to ``day.jsonl``, on disk when this returns."""
        self.out.mkdir(parents=True, exist_ok=True)
        line = {"step": step, "at": round(time.time(), 1), "dry": self.dry, **content}
        with (self.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def note(self, step: str, **finding: Any) -> None:
        """Append one finding of a step."""
        self.write(step, found=finding)


def read_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a folder's ``day.jsonl``, except truncated ones.

    Raises
    ------
    DayError
        If there is no such file.
    """
    path = folder / LINES if folder.is_dir() else folder
    if not path.is_file():
        raise DayError(f"no {LINES} at {path}. Fix: give the folder of --out")
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
