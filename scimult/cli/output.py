"""What verbs print: the one place where texts of others are made harmless for the terminal.

JSON goes out as it is, through ``typer.echo``.
"""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scimult.terminal import visible


def echo(message: object, *, err: bool = False) -> None:
    """Print a message on standard output or standard error."""
    typer.echo(visible(str(message)), err=err)


def plain(value: object) -> Text:
    """Return a cell or title: no markup, nothing that commands the terminal."""
    return Text(visible(str(value)))


def list_table(rows: list[dict[str, Any]], title: str) -> Table:
    """Return rows with the same keys as a table; numbers stand to the right."""
    table = Table(title=plain(title), title_justify="left")
    for name, value in rows[0].items() if rows else ():
        numeric = isinstance(value, (int, float))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row.values()]
        table.add_row(*map(plain, cells))
    return table


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal."""
    Console().print(table)
