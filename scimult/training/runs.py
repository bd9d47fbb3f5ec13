"""Summarise and compare runs on disk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scimult.config import read_yaml
from scimult.errors import ConfigError, DataError, SciMultError
from scimult.training import record

_CONFIG, METRICS = "config.yaml", "metrics.jsonl"
# Of every step but step 0, which has only scores.
_NUMBERS = ("loss", "tokens", "seconds")
# What reading a line raises that a run has not written.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# A single step's loss is that of one batch, often of one task.
_LAST_STEPS = 20


@dataclass(frozen=True)
class Best:
    """The highest value of a dev score, and the first step that reached it."""

    value: float
    step: int


@dataclass(frozen=True)
class RunSummary:
    """Summary of one run, from its folder.

    ``state`` is ``running``, ``finished``, ``stopped`` (by a signal), ``failed`` (with
    ``message``), ``killed`` (its process has vanished), or ``unknown`` (written by an older
    version). ``steps`` are done, ``planned`` is ``None`` if unknown. ``loss`` is the mean over the
    last 20 steps, ``dev`` has the best value by score; that of step 0, which is the base's, counts
    only until there is another. ``tokens_per_second`` is over all ranks, without the time between
    steps, and ``updated`` is when the last line was written, in UTC.
    """

    name: str
    folder: str
    variant: str
    base: str | None
    data: str
    state: str
    message: str | None
    steps: int
    planned: int | None
    loss: float | None
    dev: dict[str, Best]
    tokens_per_second: float | None
    updated: str | None


def find_runs(paths: Sequence[Path], damaged: list[SciMultError] | None = None) -> list[Path]:
    """Return the run folders among and below ``paths``, sorted, each once, also if linked.

    Errors about single runs are appended to ``damaged``, if given, instead of raised.

    Raises
    ------
    DataError
        If a path holds no run.
    ConfigError
        If a run's configuration is damaged.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        before = len(damaged or ())
        below = sorted(_runs_below(path, damaged))
        if not below and before == len(damaged or ()):
            raise DataError(
                "no run here", path=path, fix="name runs' output folders, or a folder above them"
            )
        for folder in below:
            folders.setdefault(folder.resolve(), folder)
    return list(folders.values())


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell runs apart: ``vanilla``, or ``seed1/vanilla``."""
    parts = [folder.resolve().parts for folder in folders]
    depths = range(1, 1 + max(map(len, parts), default=1))
    ends = (["/".join(path[-depth:]) for path in parts] for depth in depths)
    return next(names for names in ends if len(set(names)) == len(set(parts)))


def summarise_all(paths: Sequence[Path]) -> tuple[list[RunSummary], list[SciMultError]]:
    """Summarise the runs among and below ``paths``; also return an error for each damaged one.

    Raises
    ------
    DataError
        If a path holds no run.
    """
    damaged: list[SciMultError] = []
    summaries = []
    folders = find_runs(paths, damaged)
    for folder, name in zip(folders, names_of(folders), strict=True):
        try:
            summaries.append(replace(summarise(folder), name=name))
        except SciMultError as error:
            damaged.append(error)
    return summaries, damaged


def _runs_below(path: Path, damaged: list[SciMultError] | None) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        ours = {METRICS, record.FILE}.intersection(files)
        if _CONFIG not in files or not (ours or {"checkpoints", "model"}.intersection(folders)):
            continue
        try:
            is_run = _is_run(Path(folder, _CONFIG), bool(ours))
        except ConfigError as error:
            if damaged is None:
                raise
            damaged.append(error)
            continue
        if is_run:
            folders.clear()
            yield Path(folder)


def _is_run(path: Path, ours: bool) -> bool:
    """Return whether a configuration is a run's; it must be where a run has written metrics."""
    config = read_yaml(path)
    sections = config.get("data"), config.get("model"), config.get("schedule", {})
    if all(isinstance(section, Mapping) for section in sections):
        return True
    if ours:
        fix = "restore it, or remove the folder"
        raise ConfigError("not a run's configuration", path=path, fix=fix)
    return False


def summarise(folder: Path) -> RunSummary:
    """Summarise one run.

    Raises
    ------
    ConfigError, DataError
        If its configuration or a line of its metrics is damaged. A last line that is still
        being written is ignored.
    """
    config = read_yaml(folder / _CONFIG)
    lines = read_metrics(folder / METRICS)
    steps = [line for line in lines if line["step"] > 0]
    last = steps[-_LAST_STEPS:]
    seconds = sum(line["seconds"] for line in steps)
    recorded = record.read_record(folder)
    model = config.get("model", {})
    return RunSummary(
        name=folder.resolve().name,
        folder=str(folder),
        variant=str(model.get("variant")),
        base=model.get("base"),
        data=str(config.get("data", {}).get("prepared")),
        state=_state(recorded, folder),
        message=recorded.get("message"),
        steps=int(steps[-1]["step"]) if steps else 0,
        planned=recorded.get("steps", config.get("schedule", {}).get("steps")),
        loss=sum(line["loss"] for line in last) / len(last) if last else None,
        dev=_best(lines),
        tokens_per_second=sum(line["tokens"] for line in steps) / seconds if seconds else None,
        updated=_modified(folder / METRICS),
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; none if it has not started.

    Raises
    ------
    DataError
        If a line is damaged; an incomplete last line is ignored.
    """
    if not path.is_file():
        return []
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fix = "restore the file, or remove the lines that are not UTF-8"
        raise DataError(f"damaged metrics: {error}", path=path, fix=fix) from error
    lines = []
    for number, text in enumerate(content.splitlines(True), start=1):
        if not text.endswith("\n"):
            break
        try:
            line = json.loads(text)
            line["step"] = int(line["step"])
            line["metrics"] = {name: float(score) for name, score in line["metrics"].items()}
            for name in _NUMBERS if line["step"] else ():
                line[name] = float(line[name])
            for means in line.get("by_task", {}).values():
                means["loss"] = float(means["loss"])
        except _DAMAGED as error:
            raise DataError(
                "damaged line of metrics", path=path, line=number, value=text, fix="remove the line"
            ) from error
        lines.append(line)
    return lines


def _state(recorded: Mapping[str, Any], folder: Path) -> str:
    if not recorded:
        return "finished" if (folder / "model").is_dir() else "unknown"
    if not isinstance(recorded["pid"], int):
        path, fix = folder / record.FILE, "restore the file, or remove it"
        raise DataError("not a process id", path=path, value=recorded["pid"], fix=fix)
    here = recorded["host"] == socket.gethostname()
    if recorded["state"] == "running" and here and not _is_alive(recorded["pid"]):
        return "killed"
    return str(recorded["state"])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, but not as this user
        pass
    return True


def _best(lines: Sequence[Mapping[str, Any]]) -> dict[str, Best]:
    best: dict[str, Best] = {}
    for line in lines:
        for name, value in line["metrics"].items():
            # Step 0 is the base: a run that only loses must not show its base's score.
            if name not in best or not best[name].step or value > best[name].value:
                best[name] = Best(value, line["step"])
    return best


def _modified(path: Path) -> str | None:
    if not path.is_file():
        return None
    modified = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    return modified.isoformat(timespec="seconds")


@dataclass(frozen=True)
class Comparison:
    """Differences between runs: each entry has one value per run, ``None`` if it has none."""

    runs: list[str]
    config: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Return the configuration keys in which runs differ, and their metrics side by side.

    The output folder is omitted. Metrics are those of `RunSummary`: steps, loss of the last
    steps, tokens per second, and the best value of each dev score.
    """
    configs = [flat(read_yaml(folder / _CONFIG)) for folder in folders]
    keys = dict.fromkeys(key for config in configs for key in config if key != "output")
    values = {key: [config.get(key) for config in configs] for key in keys}
    summaries = [summarise(folder) for folder in folders]
    scores = dict.fromkeys(name for summary in summaries for name in summary.dev)
    metrics: dict[str, list[float | None]] = {
        "steps": [summary.steps for summary in summaries],
        "loss": [summary.loss for summary in summaries],
        "tokens_per_second": [summary.tokens_per_second for summary in summaries],
    }
    for name in scores:
        best_scores = [summary.dev.get(name) for summary in summaries]
        metrics[name] = [None if best is None else best.value for best in best_scores]
    return Comparison(
        names_of(folders),
        {key: row for key, row in values.items() if any(value != row[0] for value in row)},
        metrics,
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a tree to dotted keys; lists are values."""
    keys: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            keys |= flat(value, f"{prefix}{key}.")
        else:
            keys[f"{prefix}{key}"] = value
    return keys
