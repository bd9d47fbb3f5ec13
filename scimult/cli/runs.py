"""``scimult runs``: what runs there are, how far they came, and how they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.common import AsJson
from scimult.cli.output import print_table


def runs(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Output folders of runs, or folders of them.", show_default=False),
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Only where configurations and metrics differ.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List pre-training runs with state, loss, best dev scores and speed; or compare some."""
    import json

    from scimult.cli.runs_table import comparison_tables, runs_table
    from scimult.errors import ConfigError
    from scimult.training import runs as found_runs

    found = found_runs.find_runs(folders)
    if not compare:
        summaries = [found_runs.summarise(folder) for folder in found]
        if as_json:
            for summary in summaries:
                typer.echo(json.dumps(found_runs.as_json(summary), ensure_ascii=False))
        else:
            print_table(runs_table(summaries))
        return
    if len(found) < 2:
        raise ConfigError("--compare takes two runs or more", value=[str(path) for path in found])
    comparison = found_runs.compare_runs(found)
    if as_json:
        typer.echo(json.dumps(found_runs.as_json(comparison), ensure_ascii=False))
        return
    for table in comparison_tables(comparison):
        print_table(table)
