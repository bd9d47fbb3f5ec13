"""Tables of ``scimult runs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scimult.table import Cell, Table, label, number, texts
from scimult.training.runs import Comparison, RunSummary


def runs_table(summaries: Sequence[RunSummary]) -> Table:
    """Return one row per run; of its dev scores the mean, or the first where there is no mean."""
    names = ["run", "variant", "data", "state"]
    numbers = ["steps", "loss", "best dev score", "tok/s", "last step (UTC)"]
    return Table("runs", [*names, *numbers], len(names), [_row(run) for run in summaries])


def _row(run: RunSummary) -> list[Cell]:
    state = run.state if run.message is None else f"{run.state}: {run.message.splitlines()[0]}"
    return [
        *texts(run.name, run.variant, run.data, state),
        label(f"{run.steps}/{'?' if run.planned is None else run.planned}"),
        number(run.loss, "{:.4f}"),
        label(_best(run)),
        number(run.tokens_per_second, "{:,.0f}"),
        label("" if run.updated is None else run.updated[:16].replace("T", " ")),
    ]


def _best(run: RunSummary) -> str:
    if not run.dev:
        return ""
    name = next((name for name in run.dev if "/mean/" in name), next(iter(run.dev)))
    best = run.dev[name]
    return f"{name.removeprefix('dev/')} {best.value:.4f} @{best.step}"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the differing settings, and the metrics with their difference to the first run."""
    runs = comparison.runs
    settings = [texts(key, *map(_shown, values)) for key, values in comparison.config.items()]
    metrics = []
    for name, (first, *others) in comparison.metrics.items():
        changes = [None if first is None or other is None else other - first for other in others]
        cells = [number(value, "{:.6g}") for value in (first, *others)]
        metrics.append([label(name), *cells, *(number(change, "{:+.4g}") for change in changes)])
    differences = [f"{run} - {runs[0]}" for run in runs[1:]]
    return [
        Table("settings that differ", ["setting", *runs], 1, settings),
        Table("metrics (best dev scores)", ["metric", *runs, *differences], 1, metrics),
    ]


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
