"""wandb or trackio, whichever was asked for and is installed; the two share their interface."""

from __future__ import annotations

import importlib
import secrets
from pathlib import Path
from typing import Any, Literal

from scimult.errors import ConfigError
from scimult.files import read_json, write_json
from scimult.training.loop import Callback, StepReport
from scimult.training.summary import Window

TrackerName = Literal["wandb", "trackio"]
_FILE = "tracker.json"


def open_tracker(name: TrackerName) -> Any:
    """Import a tracker's package.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"log.tracker {name} is not installed here",
            fix=f"pip install {name}, or leave log.tracker out",
        ) from error


class Tracker(Callback):
    """Reports dev scores as they come, and means over the last ``every`` steps.

    A resumed run goes on under its name, which is the folder's and a few random letters, kept
    in ``tracker.json``.

    Parameters
    ----------
    name : str
        ``wandb`` or ``trackio``.
    folder : Path
        The run folder.
    project : str
        Of the tracker.
    every, steps : int
        Steps of one report; steps of the run.
    config : dict
        Shown with the run.
    """

    def __init__(
        self,
        name: TrackerName,
        folder: Path,
        project: str,
        *,
        every: int,
        steps: int,
        config: dict[str, Any],
    ) -> None:
        self._every, self._steps = every, steps
        self._window = Window()
        path = folder / _FILE
        if not path.is_file():
            write_json(path, {"name": f"{folder.name}-{secrets.token_hex(3)}"})
        run_name = str(read_json(path)["name"])
        options: dict[str, Any] = {"name": run_name, "config": config, "resume": "allow"}
        if name == "wandb":
            # trackio resumes by name; wandb by id, and writes files of its own.
            options |= {"id": run_name, "dir": str(folder)}
        self._package = open_tracker(name)
        self._package.init(project=project, **options)

    def on_start(self, metrics: dict[str, float]) -> None:
        """Report the scores of the untrained model."""
        if metrics:
            self._package.log(dict(metrics), step=0)

    def on_step(self, report: StepReport) -> None:
        """Report what is new, in one call per step: trackers take a step only once."""
        self._window.add(report)
        scalars = dict(report.metrics)
        if report.step % self._every == 0 or report.step == self._steps:
            scalars |= self._window.take()
        if scalars:
            self._package.log(scalars, step=report.step)

    def on_end(self) -> None:
        """Close the run."""
        self._package.finish()
