"""Learning curves of all trials of a study in one picture."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scimult.studies.plan import Plan
from scimult.studies.trials import Trial, by_run
from scimult.training.curves import smoothed
from scimult.training.runs import METRICS, read_metrics

Points = tuple[list[int], list[float]]


def draw_curves(plan: Plan) -> bytes | None:
    """Draw dev scores and smoothed losses, a colour for each run and a line for each seed.

    Returns
    -------
    bytes or None
        A PNG; None while nothing was trained.
    """
    trained = {
        name: members
        for name, members in by_run(plan.trials).items()
        if any(_losses(trial)[0] for trial in members)
    }
    if not trained:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 4.5 + 0.25 * (len(trained) // 3)
    figure, (scores, losses) = pyplot.subplots(1, 2, figsize=(12, height), constrained_layout=True)
    colours = pyplot.get_cmap("tab20" if len(trained) > 10 else "tab10")
    for number, (name, members) in enumerate(trained.items()):
        for place, trial in enumerate(members):
            style: dict[str, Any] = {"color": colours(number % colours.N), "linewidth": 1.2}
            style["label"] = name if place == 0 else None
            style["linestyle"] = ("-", "--", ":", "-.")[place % 4]
            steps, values = _losses(trial)
            losses.plot(steps, smoothed(values), **style)
            scores.plot(*_dev_means(trial), marker="o", markersize=3, **style)
    for axes, title in (
        (scores, "dev pairs: mean reciprocal rank, mean over sets"),
        (losses, "training loss, smoothed"),
    ):
        axes.set(title=title, xlabel="optimizer step")
        axes.grid(alpha=0.3)
    handles, labels = losses.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    file = io.BytesIO()
    # Without the time, which matplotlib would write into it.
    figure.savefig(file, format="png", dpi=100, metadata={"Software": "Matplotlib"})
    pyplot.close(figure)
    return file.getvalue()


def _losses(trial: Trial) -> Points:
    """Return the loss of every step; stages follow each other."""
    return _points(trial, lambda line: line["loss"] if line["step"] else None)


def _dev_means(trial: Trial) -> Points:
    return _points(trial, lambda line: line.get("metrics", {}).get("dev/mean/mrr"))


def _points(trial: Trial, value_of: Callable[[dict[str, Any]], float | None]) -> Points:
    steps: list[int] = []
    values: list[float] = []
    before = 0
    for stage in trial.stages:
        lines = read_metrics(Path(stage.config.output) / METRICS)
        for line in lines:
            value = value_of(line)
            if value is not None:
                steps.append(before + line["step"])
                values.append(value)
        before += max((line["step"] for line in lines), default=0)
    return steps, values
