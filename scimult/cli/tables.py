"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from scimult.cli.output import echo, plain
from scimult.data.prepared import PreparedData
from scimult.terminal import visible

if TYPE_CHECKING:
    from scimult.preparation.sources import PublicSource


def print_prepared(data: PreparedData) -> None:
    """Print what a prepared folder holds: counts per source, then pairs and negatives."""
    console = Console()
    sources = Table(title=plain(f"{data.folder}: {len(data.texts):,} texts"), box=box.SIMPLE)
    sources.add_column("source", no_wrap=True)
    sources.add_column("count", overflow="fold")
    for source in data.manifest.sources:
        counts = [f"{count:,} {what}" for what, count in source.counts.items() if count]
        sources.add_row(source.name, ", ".join(counts))
    console.print(sources)
    pairs = Table(box=box.SIMPLE)
    pairs.add_column("source", overflow="fold", min_width=12)
    for name in ("task", "split"):
        pairs.add_column(name, no_wrap=True)
    names = ["queries", "groups", "pairs"]
    if any(entry.unsampled for entry in data.manifest.pairs):
        names.append("unsampled")
    for name in (*names, "mined"):
        pairs.add_column(name, justify="right", no_wrap=True)
    for entry in data.manifest.pairs:
        mined = entry.with_negatives / max(entry.groups, 1)
        counts = [f"{getattr(entry, name):,}" for name in names]
        pairs.add_row(entry.source, entry.task, entry.split, *counts, f"{mined:.1%}")
    console.print(pairs)
    console.print("mined: groups with at least one hard negative", highlight=False)


def print_sources(sources: Sequence[PublicSource]) -> None:
    """Print every public source with its terms, its address and the files it needs."""
    for source in sources:
        files = "\n".join(f"    {file}" for file in source.files)
        echo(f"{source.name}: {source.title}\n  get it: {source.url}")
        echo(f"  licence: {source.licence}\n  files below --input:\n{files}")


def print_conversion(folder: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print what a conversion to raw files counted."""
    table = Table(title=plain(f"{folder}: raw files"), box=box.SIMPLE)
    table.add_column("source", no_wrap=True)
    table.add_column("count", overflow="fold")
    for name, found in counts.items():
        table.add_row(name, ", ".join(f"{n:,} {what}" for what, n in found.items() if n))
    Console().print(table)


def print_with_notes(table: Table, notes: Sequence[str]) -> None:
    """Print a table, in full width where nobody looks at a terminal, and its notes."""
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    for note in notes:
        console.print(visible(note), highlight=False, markup=False, soft_wrap=True)
