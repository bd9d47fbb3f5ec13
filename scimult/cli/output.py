"""Printing: the one place that makes untrusted text safe for the terminal.

JSON is printed unchanged, through ``typer.echo``.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from tqdm import tqdm

from scimult.errors import SciMultError
from scimult.table import Table, texts, to_rich
from scimult.terminal import tally, visible

if TYPE_CHECKING:
    from scimult.data.prepared import PreparedData
    from scimult.evaluation.results import SetResult


# Width of tables that do not go to a terminal.
_WIDE = 200


def prepare_streams() -> None:
    """Let any text be printed: closed streams lead nowhere, characters may be escaped.

    Under another encoding than UTF-8, or with undecodable bytes of a file name, a stream refuses
    characters. The escapes are JSON's, as lines of JSON are printed, too.
    """
    codecs.register_error("scimult.escape", _escaped)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Its number is free and would be given to the next file, into which libraries print.
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="scimult.escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def show_messages() -> None:
    """Print the package's log messages on stderr, above any progress bar."""
    logger = logging.getLogger("scimult")
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # A log on a full disk, or a reader that has gone, ends no training run.
        with suppress(OSError):
            tqdm.write(visible(self.format(record)), file=sys.stderr)


def ended_by(problem: object) -> typer.Exit:
    """Print an error on standard error; return what ends the command with exit code 1."""
    echo(f"error: {problem}", err=True)
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try again as it ends, and end with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return typer.Exit(1)


def echo(message: object, *, err: bool = False) -> None:
    """Print a message on standard output or standard error."""
    typer.echo(visible(str(message)), err=err)


def failure(error: Exception) -> str:
    """Describe a failure; errors that input cannot cause keep their traceback."""
    if isinstance(error, SciMultError):
        return f"failed: {error}"
    return "failed:\n" + "".join(traceback.format_exception(error))


def report_set(system: str, name: str, result: SetResult | Exception | None) -> None:
    """Print how a system did on a set, on stderr; None is one that was not scored again."""
    if result is None:
        line = "earlier score kept"
    elif isinstance(result, Exception):
        line = failure(result)
    else:
        score = 100 * result.main_score
        line = f"{result.main_metric} {score:.2f} ({result.seconds:.1f} s)"
    echo(f"{system}: {name}: {line}", err=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def print_table(table: Table) -> None:
    """Print a table and its notes."""
    console = _console()
    console.print(to_rich(table))
    for note in table.notes:
        console.print(visible(note), highlight=False, markup=False, soft_wrap=True)


def print_records(rows: list[dict[str, Any]], title: str) -> None:
    """Print rows with the same keys as a table, numbers right-aligned; ``None`` stays blank."""
    table = RichTable(title=Text(visible(title)), title_justify="left", box=box.SIMPLE)
    for name in rows[0] if rows else ():
        numeric = any(isinstance(row[name], (int, float)) for row in rows)
        side: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(Text(visible(name)), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(_cell(value))) for value in row.values()))
    _console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_prepared(data: PreparedData) -> None:
    """Print a prepared folder's counts by source, its pairs and its targets."""
    title = f"{data.folder} (texts: {len(data.texts):,})"
    print_counts(title, {source.name: source.counts for source in data.manifest.sources})
    if cleaned := data.manifest.hygiene.texts:
        summary = f"{cleaned['kept']:,} of {cleaned['read']:,} texts kept"
        echo(f"cleaned: {summary} (scimult card {data.folder} lists what was found)")
    names = ["queries", "groups", "pairs"]
    if any(entry.unsampled for entry in data.manifest.pairs):
        names.append("unsampled")
    rows = []
    for entry in data.manifest.pairs:
        share = f"{entry.with_negatives / max(entry.groups, 1):.1%}"
        mined = "–" if entry.part == "views" else share
        counts = [f"{getattr(entry, name):,}" for name in names]
        rows.append(texts(entry.source, entry.task, entry.split, *counts, mined))
    headings = ["source", "task", "split", *names, "mined"]
    notes = ["mined: groups with at least one hard negative"]
    if rows:
        print_table(Table("pairs", headings, 3, rows, notes))
    targets = [
        texts(e.source, e.task, e.split, e.kind, f"{e.papers:,}", f"{e.classes:,}")
        for e in data.manifest.targets
    ]
    if targets:
        headings = ["source", "task", "split", "kind", "papers", "classes"]
        print_table(Table("targets", headings, 4, targets))


def print_counts(title: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print the non-zero counts of every source."""
    rows = [texts(name, tally(numbers)) for name, numbers in counts.items()]
    print_table(Table(title, ["source", "counts"], 2, rows))
