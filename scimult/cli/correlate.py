"""``scimult correlate``: whether data sets order systems alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.output import echo, print_table


def correlate(
    results: Annotated[
        Path, typer.Argument(help="Folder that scimult evaluate wrote.", show_default=False)
    ],
    method: Annotated[
        Literal["pearson", "spearman", "kendall"], typer.Option(help="What is printed.")
    ] = "pearson",
) -> None:
    """Correlations between data sets over systems; writes all methods as JSON and Markdown."""
    from scimult.evaluation.correlation import METHODS, correlation_table
    from scimult.evaluation.correlation import correlate as correlate_sets
    from scimult.files import write_json, write_text
    from scimult.table import to_markdown

    correlation = correlate_sets(results)
    write_json(results / "correlation.json", correlation.model_dump(mode="json"))
    pages = [to_markdown(correlation_table(correlation, name), level=1) for name in METHODS]
    write_text(results / "correlation.md", "\n".join(pages))
    print_table(correlation_table(correlation, method))
    echo(f"all methods in {results / 'correlation.md'}, full precision beside it")
