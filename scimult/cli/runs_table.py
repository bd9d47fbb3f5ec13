"""Tables of ``scimult runs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from scimult.cli.output import plain
from scimult.training.runs import Comparison, RunSummary


def runs_table(summaries: Sequence[RunSummary]) -> Table:
    """Return one row per run; of its dev scores the mean, or the first where there is no mean."""
    table = Table(box=box.SIMPLE, padding=(0, 1))
    for name in ("run", "variant", "data", "state"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "loss", "best dev score", "tok/s", "last step (UTC)"):
        table.add_column(name, justify="right")
    for run in summaries:
        row = (
            run.name,
            run.variant,
            run.data,
            run.state if run.message is None else f"{run.state}: {run.message.splitlines()[0]}",
            f"{run.steps}/{'?' if run.planned is None else run.planned}",
            "" if run.loss is None else f"{run.loss:.4f}",
            _best(run),
            "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
            "" if run.updated is None else run.updated[:16].replace("T", " "),
        )
        table.add_row(*map(plain, row))
    return table


def _best(run: RunSummary) -> str:
    if not run.dev:
        return ""
    name = next((name for name in run.dev if "/mean/" in name), next(iter(run.dev)))
    best = run.dev[name]
    return f"{name.removeprefix('dev/')} {best.value:.4f} @{best.step}"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the differing settings, and the metrics with their difference to the first run."""
    settings = Table(title="settings that differ", title_justify="left", box=box.SIMPLE)
    metrics = Table(title="metrics (best dev scores)", title_justify="left", box=box.SIMPLE)
    for table in (settings, metrics):
        table.add_column("")
        for run in comparison.runs:
            table.add_column(run, overflow="fold", justify="right")
    for run in comparison.runs[1:]:
        metrics.add_column(f"{run} - {comparison.runs[0]}", justify="right")
    for key, values in comparison.config.items():
        settings.add_row(key, *(plain(_shown(value)) for value in values))
    for name, numbers in comparison.metrics.items():
        first, *others = numbers
        differences = [
            "" if first is None or other is None else f"{other - first:+.4g}" for other in others
        ]
        metrics.add_row(name, *("" if n is None else f"{n:.6g}" for n in numbers), *differences)
    return [settings, metrics]


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
