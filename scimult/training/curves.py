"""Plot learning curves of runs from their ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.errors import DataError
from scimult.files import atomic_file
from scimult.table import in_legend
from scimult.training.runs import METRICS, names_of, read_metrics

SOFTWARE = "scimult curves"
"""Marks our plots in their metadata."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric over the steps of a run."""

    metric: str
    steps: list[int]
    values: list[float]


def read_curves(run: Path) -> list[Curve]:
    """Return every dev score of a run, and the losses: ``loss/SOURCE.TASK``.

    Steps that mix sources have a loss of each task only: ``loss/TASK``.

    Raises
    ------
    DataError
        If the run has no metrics, or one of their lines is damaged.
    """
    path = run / METRICS
    lines = read_metrics(path)
    if not lines:
        raise DataError("run has no metrics", path=path, fix="name a run's output folder")
    points: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        values = dict(line["metrics"])
        sources = set(line.get("sources", ()))
        of_source = f"{sources.pop()}." if len(sources) == 1 else ""
        for task, means in line.get("by_task", {}).items():
            values[f"loss/{of_source}{task}"] = means["loss"]
        for metric, value in values.items():
            points.setdefault(metric, []).append((line["step"], float(value)))
    return [
        Curve(metric, *map(list, zip(*values, strict=True))) for metric, values in points.items()
    ]


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Return the exponential moving average, with bias correction."""
    mean, total, result = 0.0, 0.0, []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        result.append(mean / total)
    return result


def plot_curves(runs: Sequence[Path], path: Path) -> None:
    """Draw dev scores (left) and smoothed training losses (right) as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (scores, losses) = pyplot.subplots(1, 2, figsize=(13, 6), constrained_layout=True)
    styles = ("-", "--", ":", "-.")
    colours: dict[str, str] = {}
    for number, (run, name) in enumerate(zip(runs, names_of(runs), strict=True)):
        for curve in read_curves(run):
            kind, *parts = curve.metric.split("/")
            is_loss = kind == "loss"
            # A loss and the rank of the same pairs share a colour.
            subject = " ".join(part for part in parts if part != "mrr")
            colour = colours.setdefault(subject, f"C{len(colours)}")
            label = f"{subject}, {name}" if len(runs) > 1 else subject
            style = {"color": colour, "linestyle": styles[number % 4], "label": in_legend(label)}
            if is_loss:
                losses.plot(curve.steps, smoothed(curve.values), **style)
            else:
                scores.plot(curve.steps, curve.values, marker="o", markersize=3, **style)
    for axes, title in (
        (scores, "dev scores (of pairs: mean reciprocal rank)"),
        (losses, "training loss, smoothed"),
    ):
        axes.set(title=title, xlabel="optimizer step")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": SOFTWARE})
    pyplot.close(figure)
