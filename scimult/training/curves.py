"""Learning curves of runs, read from their ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scimult.errors import DataError
from scimult.files import atomic_file


@dataclass(frozen=True)
class Curve:
    """Values of one metric over the steps of one run."""

    run: str
    metric: str
    steps: list[int]
    values: list[float]


def read_curves(run: Path) -> list[Curve]:
    """Return the loss of each source and every dev score of a run.

    Raises
    ------
    DataError
        If the run has no metrics, or a line of them is damaged.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise DataError("run has no metrics", path=path, fix="name the output folder of a run")
    points: dict[str, list[tuple[int, float]]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for metric, value in _points(line, path, number):
            points.setdefault(metric, []).append(value)
    return [
        Curve(run.name, metric, *map(list, zip(*values, strict=True)))
        for metric, values in points.items()
    ]


def _points(line: str, path: Path, number: int) -> list[tuple[str, tuple[int, float]]]:
    try:
        report: dict[str, Any] = json.loads(line)
        step = int(report["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            "not a line of metrics", path=path, line=number, value=line, fix="remove the line"
        ) from error
    points = [(name, (step, float(value))) for name, value in report["metrics"].items()]
    sources = set(report.get("sources", ()))
    if len(sources) == 1:
        points.append((f"loss/{sources.pop()}", (step, float(report["loss"]))))
    return points


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Return the running exponential mean, corrected for its start."""
    mean, total, result = 0.0, 0.0, []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        result.append(mean / total)
    return result


def plot_curves(runs: Sequence[Path], path: Path) -> None:
    """Draw dev scores (left) and smoothed training losses by source (right) as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (scores, losses) = pyplot.subplots(1, 2, figsize=(13, 6), constrained_layout=True)
    styles = ("-", "--", ":", "-.")
    colours: dict[str, str] = {}
    for number, run in enumerate(runs):
        for curve in read_curves(run):
            is_loss = curve.metric.startswith("loss/")
            source = curve.metric.split("/")[1].split(".")[0]
            colour = colours.setdefault(source, f"C{len(colours)}")
            label = f"{source}, {run.name}" if len(runs) > 1 else source
            style = {"color": colour, "linestyle": styles[number % 4], "label": label}
            if is_loss:
                losses.plot(curve.steps, smoothed(curve.values), **style)
            else:
                scores.plot(curve.steps, curve.values, marker="o", markersize=3, **style)
    for axes, title in (
        (scores, "dev pairs: mean reciprocal rank"),
        (losses, "training loss, smoothed"),
    ):
        axes.set(title=title, xlabel="optimizer step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    pyplot.close(figure)
