"""``scimult compare``: how much better a system is than another, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.output import print_table


def compare(
    results: Annotated[
        Path, typer.Argument(help="Folder that scimult evaluate wrote.", show_default=False)
    ],
    baseline: Annotated[
        str, typer.Option(help="The system that others are compared with.", show_default=False)
    ],
    systems: Annotated[
        list[str] | None,
        typer.Option(help="Only this system (repeatable)."),
    ] = None,
    metric: Annotated[
        Literal["main", "all"], typer.Option(help="The main metric of each set, or every metric.")
    ] = "main",
    resamples: Annotated[
        int, typer.Option(min=100, help="Draws of the bootstrap and of the test.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Where the draws start.")] = 0,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Of intervals; tests use 1 minus this.")
    ] = 0.95,
) -> None:
    """Differences to a baseline with intervals and corrected tests; writes JSON and Markdown."""
    from scimult.evaluation.comparison import Settings, save_comparison
    from scimult.evaluation.comparison import compare as compare_systems
    from scimult.evaluation.reporting.leaderboard import differences
    from scimult.files import write_text
    from scimult.table import to_markdown

    settings = Settings(
        baseline=baseline, metric=metric, resamples=resamples, seed=seed, confidence=confidence
    )
    found = compare_systems(results, settings, systems or [])
    path = save_comparison(found, results)
    table = differences(found)
    write_text(path.with_suffix(".md"), to_markdown(table, level=1))
    print_table(table)
    typer.echo(f"table in {path.with_suffix('.md')}, full precision in {path}")
