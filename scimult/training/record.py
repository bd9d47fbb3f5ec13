"""Record a run's state in its ``run.json``: running, finished, stopped or failed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scimult import __version__, distributed
from scimult.errors import SciMultError
from scimult.files import read_json, write_json
from scimult.training.stopping import StoppedError

FILE = "run.json"


@contextmanager
def recorded(folder: Path, steps: int) -> Iterator[None]:
    """Record on the main rank that a run is running, and how it ended.

    A process that is killed outright leaves the state ``running``, with host and process id to
    check. ``steps`` are those of the whole run.
    """
    path = folder / FILE
    now = _now()
    before = read_record(folder)
    record = {
        "state": "running",
        "steps": steps,
        "started": before.get("started", now),
        "resumed": now if before else None,
        "ended": None,
        "message": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ranks": distributed.world_size(),
        "scimult": __version__,
    }
    _write(path, record)
    try:
        yield
    except BaseException as error:
        state = "stopped" if isinstance(error, StoppedError) else "failed"
        message = str(error) or type(error).__name__
        # A disk error must not hide the error that ended the run.
        with contextlib.suppress(OSError, SciMultError):
            _write(path, record | {"state": state, "ended": _now(), "message": message})
        raise
    _write(path, record | {"state": "finished", "ended": _now()})


def _write(path: Path, record: dict[str, Any]) -> None:
    if distributed.is_main():
        write_json(path, record)


def read_record(folder: Path) -> dict[str, Any]:
    """Return what a run recorded, empty if it recorded nothing: others call files so, too."""
    path = folder / FILE
    record = read_json(path) if path.is_file() else {}
    ours = isinstance(record, dict) and {"state", "started", "host", "pid"} <= record.keys()
    return record if ours else {}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
