"""``scimult runs`` and ``curves``: list, compare and plot runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_distinct
from scimult.cli.output import echo, print_table
from scimult.errors import ConfigError
from scimult.files import check_own_file
from scimult.progress import warn
from scimult.table import Cell, Table, label, number, texts
from scimult.terminal import counted

if TYPE_CHECKING:
    from scimult.training.runs import Comparison, RunSummary


def runs(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders of them.", show_default=False),
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Show where configurations and metrics differ.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """List pre-training runs with state, loss, best dev score and speed, or compare them."""
    import json
    from dataclasses import asdict

    from scimult.training.runs import compare_runs, find_runs, summarise_all

    if not compare:
        summaries, damaged = summarise_all(folders)
        if not summaries:
            raise damaged[0]
        for error in damaged:
            warn(f"left out: {error}")
        if as_json:
            for summary in summaries:
                typer.echo(json.dumps(asdict(summary), ensure_ascii=False))
        else:
            print_table(runs_table(summaries))
        return
    paths = find_runs(folders)
    if len(paths) < 2:
        fix = "name another run, or leave out --compare"
        value = [str(path) for path in paths]
        raise ConfigError("--compare needs at least two runs", value=value, fix=fix)
    comparison = compare_runs(paths)
    if as_json:
        typer.echo(json.dumps(asdict(comparison), ensure_ascii=False))
        return
    for table in comparison_tables(comparison):
        print_table(table)


def runs_table(summaries: Sequence[RunSummary]) -> Table:
    """Return one row per run, with its mean dev score, or the first one if there is no mean."""
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
    """Return the differing settings, and the metrics with their differences to the first run."""
    runs = comparison.runs
    settings = [
        texts(key, *("-" if value is None else str(value) for value in values))
        for key, values in comparison.config.items()
    ]
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


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("curves.png"),
) -> None:
    """Plot dev scores and training losses over the steps of one or more runs."""
    from scimult.training.curves import SOFTWARE, plot_curves

    if out.suffix.lower() != ".png":
        fix = f"write --out {out.with_suffix('.png')}" if out.name else "name a file"
        raise ConfigError("a plot of curves is a PNG file", value=str(out), fix=fix)
    check_own_file(out, "a plot of curves", SOFTWARE.encode())
    check_distinct(runs)
    plot_curves(runs, out)
    echo(f"{counted(len(runs), 'run')} plotted in {out}")
