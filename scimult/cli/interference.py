"""``scimult interference``: find where tasks pull a model in different directions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model
from scimult.cli.output import echo, print_table


def interference(
    model: Annotated[
        Path,
        typer.Option(help="Run, saved model or Hugging Face folder.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.", show_default=False)],
    overrides: opt.Overrides = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Run config: tasks, mixture, loss, batches. Default: the run's own."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the prepared data, instead of data.prepared.")
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(min=2, help="Rounds of two batches per task; more give narrower intervals."),
    ] = 8,
    base: Annotated[
        Path | None, typer.Option(help="Model to measure the drift of embeddings from.")
    ] = None,
    affinity_steps: Annotated[
        int,
        typer.Option(
            min=0,
            help="Steps to train on each task, each pair and all, scoring every model on every "
            "task (SciRepEval, Table 11). 0: none.",
        ),
    ] = 0,
    device: opt.Device = None,
) -> None:
    """Compare the gradients of tasks block by block and suggest where to put experts."""
    check_model(model)
    if base is not None:
        check_model(base)
    from scimult.config import string_override
    from scimult.training.interference.run import run_interference

    data_override = [] if data is None else [string_override("data.prepared", str(data))]
    report = run_interference(
        model,
        out,
        config=config,
        overrides=[*(overrides or []), *data_override],
        rounds=rounds,
        base=base,
        affinity_steps=affinity_steps,
        device=device,
    )
    for table in report.tables:
        print_table(table)
    echo(f"suggested layout: {report.layout.reason}\n{report.layout.snippet}")
    echo(f"report in {out}")
