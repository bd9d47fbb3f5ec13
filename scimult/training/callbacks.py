"""Callbacks of a run: dev scores, checkpoints, and reports to files, terminals and trackers."""

from __future__ import annotations

import importlib
import json
import math
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from scimult.errors import ConfigError
from scimult.files import read_json, storage_error, write_json, write_text
from scimult.progress import bar, is_watched, note, warn
from scimult.training.loop import Callback, StepReport
from scimult.training.metrics import means_by_task
from scimult.training.summary import Window


class DevScores(Callback):
    """Adds the scores of ``evaluate`` to the report every ``every`` steps and after the last."""

    def __init__(self, evaluate: Callable[[], dict[str, float]], every: int, steps: int) -> None:
        self._evaluate, self._every, self._steps = evaluate, every, steps

    def needs_model(self, step: int) -> bool:
        """Return whether an evaluation is due."""
        return step % self._every == 0 or step == self._steps

    def on_start(self, metrics: dict[str, float]) -> None:
        """Evaluate the untrained model, as the reference point of the run."""
        metrics |= self._evaluate()

    def on_step(self, report: StepReport) -> None:
        """Evaluate if due."""
        if self.needs_model(report.step):
            report.metrics |= self._evaluate()


class Checkpoints(Callback):
    """Calls ``save`` every ``every`` steps and after the last, even if the run is stopped early.

    ``wanted`` says whether a step must be saved for another reason, which may only be the scores
    of that very step.
    """

    def __init__(
        self, save: Callable[[int], None], every: int, steps: int, wanted: Callable[[int], bool]
    ) -> None:
        self._save, self._every, self._steps, self._wanted = save, every, steps, wanted

    def needs_model(self, step: int) -> bool:
        """Return whether a checkpoint is due."""
        return step % self._every == 0 or step == self._steps or self._wanted(step)

    def on_step(self, report: StepReport) -> None:
        """Save if due."""
        if self.needs_model(report.step):
            self._save(report.step)

    def on_stop(self, step: int) -> None:
        """Save unless the step has been saved already."""
        if not self.needs_model(step):
            self._save(step)


class MetricsFile(Callback):
    """Appends one JSON line per step to ``metrics.jsonl``.

    Lines of steps that a resumed run repeats are removed first, so that every step appears once;
    a run without a checkpoint repeats them all.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        self._path = path
        if path.exists():
            lines = [
                line
                for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
                if first_step and _step_of(line, otherwise=first_step + 1) <= first_step
            ]
            write_text(path, "".join(f"{line}\n" for line in lines))
        self._file = path.open("a", encoding="utf-8")

    def on_start(self, metrics: dict[str, float]) -> None:
        """Write the line of step 0, which has only scores."""
        self._write({"step": 0, "metrics": metrics})

    def on_step(self, report: StepReport) -> None:
        """Write the step's line and flush it."""
        line = vars(report) | {"by_task": means_by_task(report.sums)}
        del line["sums"]
        # A step that fp16 skipped has an infinite norm, which JSON cannot hold.
        if not math.isfinite(report.gradient_norm):
            line["gradient_norm"] = None
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise storage_error(error, self._path) from error

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


def _step_of(line: str, otherwise: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return otherwise


class _Scalars(Callback, ABC):
    """Reports dev scores immediately, and means over the last ``every`` steps."""

    def __init__(self, every: int, steps: int) -> None:
        self._every, self._steps = every, steps
        self._window = Window()

    @abstractmethod
    def _write(self, scalars: dict[str, float], step: int) -> None:
        """Write the scalars of a step."""

    def on_start(self, metrics: dict[str, float]) -> None:
        """Report the scores of the untrained model."""
        if metrics:
            self._write(dict(metrics), 0)

    def on_step(self, report: StepReport) -> None:
        """Report all new scalars in one call, because trackers accept a step only once."""
        self._window.add(report)
        scalars = dict(report.metrics)
        if report.step % self._every == 0 or report.step == self._steps:
            scalars |= self._window.take()
        if scalars:
            self._write(scalars, report.step)


class TensorBoard(_Scalars):
    """Writes dev scores and means over the last ``every`` steps for TensorBoard.

    Steps that a resumed run repeats replace those of before, as in `MetricsFile`.
    """

    def __init__(self, folder: Path, first_step: int, every: int, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(every, steps)
        self._folder = folder
        if not isinstance(threading.excepthook, _WithoutDiskErrors):
            threading.excepthook = _WithoutDiskErrors(threading.excepthook)
        with self._naming_the_folder():
            repeated = first_step + 1 if first_step else 0
            self._writer: Any = SummaryWriter(str(folder), purge_step=repeated)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        with self._naming_the_folder():
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, step)

    def on_end(self) -> None:
        """Close the event file."""
        with self._naming_the_folder():
            self._writer.close()

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        """Turn an error of the disk, also one of an earlier call, into a message."""
        try:
            yield
        except OSError as error:
            raise storage_error(error, self._folder) from error


class _WithoutDiskErrors:
    """Prints no traceback of TensorBoard's thread for an error that its next call raises here."""

    def __init__(self, former: Callable[[threading.ExceptHookArgs], Any]) -> None:
        self._former = former

    def __call__(self, args: threading.ExceptHookArgs) -> None:
        ours = type(args.thread).__module__.startswith("tensorboard.")
        if not (ours and isinstance(args.exc_value, OSError)):
            self._former(args)


class Console(Callback):
    """A progress bar on a terminal; a line every ``every`` steps in a pipe or log file."""

    def __init__(self, first_step: int, steps: int, every: int) -> None:
        self._steps, self._every = steps, every
        self._first_step, self._started = first_step, time.perf_counter()
        self._window = Window()
        self._has_warned = False
        self._bar = bar("pretrain", total=steps, unit="step", initial=first_step)

    def on_start(self, metrics: dict[str, float]) -> None:
        """Print the scores of the untrained model."""
        _print_scores(0, metrics)

    def on_step(self, report: StepReport) -> None:
        """Advance the bar; print a line if due."""
        self._window.add(report)
        self._bar.update(1)
        _print_scores(report.step, report.metrics)
        if report.loss == report.gradient_norm == 0 and not self._has_warned:
            self._has_warned = True
            warn(
                f"step {report.step} learned nothing, as loss and gradient are 0: "
                f"{report.masked:,} candidates were excluded (loss.mask_margin, known positives)"
            )
        if report.step % self._every and report.step != self._steps:
            return
        line = _describe(self._window.take())
        self._bar.set_postfix_str(line)
        if not is_watched():
            elapsed = time.perf_counter() - self._started
            left = elapsed / (report.step - self._first_step) * (self._steps - report.step)
            note(f"step {report.step}/{self._steps}  {line}  {_clock(left)} left")

    def on_end(self) -> None:
        """Close the bar."""
        self._bar.close()


def _describe(scalars: dict[str, float]) -> str:
    """Format one console line: learning, speed, and skipped steps."""
    tasks = {
        name.removeprefix("train/loss/"): value
        for name, value in scalars.items()
        if name.startswith("train/loss/")
    }
    by_task = f" ({', '.join(f'{t} {v:.3f}' for t, v in tasks.items())})" if len(tasks) > 1 else ""
    accuracy = scalars.get("train/in_batch_accuracy")
    parts = [
        f"loss {scalars['train/loss']:.3f}{by_task}",
        *([] if accuracy is None else [f"acc {accuracy:.2f}"]),
        f"lr {scalars['train/lr']:.1e}",
        f"grad {scalars.get('train/gradient_norm', math.inf):.2f}",
        f"{scalars['speed/tokens_per_second']:,.0f} tok/s",
    ]
    if (utilisation := scalars.get("speed/model_flop_utilisation")) is not None:
        parts.append(f"MFU {utilisation:.0%}")
    if skipped := scalars.get("fp16/skipped_steps"):
        parts.append(f"{skipped:.0f} skipped")
    return "  ".join(parts)


def _print_scores(step: int, metrics: dict[str, float]) -> None:
    if metrics:
        scores = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        note(f"step {step}: {scores}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


TrackerName = Literal["wandb", "trackio"]
_FILE = "tracker.json"


def open_tracker(name: TrackerName) -> Any:
    """Import a tracker's package; wandb and trackio share their interface.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"log.tracker {name} is not installed",
            fix=f"pip install {name}, or leave log.tracker out",
        ) from error


class Tracker(_Scalars):
    """Reports to wandb or trackio, with the run's ``config``.

    The run's name, its folder's plus a few random letters, is stored in ``tracker.json``, so
    that a resumed run continues under it.
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
        super().__init__(every, steps)
        path = folder / _FILE
        if not path.is_file():
            write_json(path, {"name": f"{folder.name}-{secrets.token_hex(3)}"})
        run_name = str(read_json(path)["name"])
        options: dict[str, Any] = {"name": run_name, "config": config, "resume": "allow"}
        if name == "wandb":
            # trackio resumes by name; wandb resumes by id and writes its own files.
            options |= {"id": run_name, "dir": str(folder)}
        self._package = open_tracker(name)
        self._package.init(project=project, **options)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        self._package.log(scalars, step=step)

    def on_end(self) -> None:
        """Close the run."""
        self._package.finish()
