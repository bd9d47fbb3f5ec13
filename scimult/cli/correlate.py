"""``scimult correlate``: whether data sets order systems alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.output import echo


def correlate(
    results: Annotated[
        Path, typer.Argument(help="Folder that scimult evaluate wrote.", show_default=False)
    ],
    method: Annotated[
        Literal["pearson", "spearman", "kendall"], typer.Option(help="What is printed.")
    ] = "pearson",
) -> None:
    """Correlations between data sets over systems; writes all methods as JSON and Markdown."""
    from scimult.cli.tables import print_with_notes
    from scimult.evaluation.correlation import correlate as correlate_sets
    from scimult.evaluation.correlation import to_markdown, to_rich
    from scimult.files import write_json, write_text

    found = correlate_sets(results)
    write_json(results / "correlation.json", found.model_dump(mode="json"))
    write_text(results / "correlation.md", to_markdown(found))
    print_with_notes(to_rich(found, method), found.notes)
    echo(f"all methods in {results / 'correlation.md'}, full precision beside it")
