"""``scimult export-results``: scores and ranked lists in the formats of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.checks import named_values
from scimult.cli.output import echo


def export_results(
    results: Annotated[
        list[Path], typer.Argument(help="Folders that scimult evaluate wrote.", show_default=False)
    ],
    to: Annotated[
        Literal["csv", "mteb", "beir"],
        typer.Option(
            help="csv: all scores; mteb: result files of MTEB; beir: ranked lists as JSON, query "
            "to document to score (what PMC-Patients asks for, too)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    systems: Annotated[
        list[str] | None, typer.Option(help="Only this system (repeatable).")
    ] = None,
    sets: Annotated[list[str] | None, typer.Option(help="Only this set (repeatable).")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(help="SET=NAME: what MTEB calls a set (repeatable); default: the same."),
    ] = None,
) -> None:
    """Write CSV, MTEB's result files, or runs as BEIR and PMC-Patients read them."""
    from scimult.evaluation import exports

    form, example = "SET=NAME, letters and digits", "scifact=SciFact"
    called = named_values(names or [], "a name", form, example, str.isidentifier)
    written = exports.export_results(
        results, to, out, systems=systems or [], sets=sets or [], names=called
    )
    echo(f"{len(written):,} file{'s' if len(written) > 1 else ''} in {out}")
