"""Tables that verbs print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scimult.cli.output import echo, print_table
from scimult.table import Table, texts

if TYPE_CHECKING:
    from scimult.data.prepared import PreparedData
    from scimult.preparation.sources import PublicSource


def print_prepared(data: PreparedData) -> None:
    """Print what a prepared folder holds: counts per source, then pairs and negatives."""
    title = f"{data.folder}: {len(data.texts):,} texts"
    print_counts(title, {source.name: source.counts for source in data.manifest.sources})
    names = ["queries", "groups", "pairs"]
    if any(entry.unsampled for entry in data.manifest.pairs):
        names.append("unsampled")
    rows = []
    for entry in data.manifest.pairs:
        mined = entry.with_negatives / max(entry.groups, 1)
        counts = [f"{getattr(entry, name):,}" for name in names]
        rows.append(texts(entry.source, entry.task, entry.split, *counts, f"{mined:.1%}"))
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


def print_sources(sources: Sequence[PublicSource]) -> None:
    """Print every public source with its terms, its address and the files it needs."""
    for source in sources:
        files = "\n".join(f"    {file}" for file in source.files)
        by_us = "" if source.download is None else " (or --download)"
        echo(f"{source.name}: {source.title}\n  get it: {source.url}{by_us}")
        echo(f"  licence: {source.licence}\n  files below --input:\n{files}")


def print_counts(title: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print what was counted of every source, zeros left out."""
    rows = [
        texts(name, ", ".join(f"{count:,} {what}" for what, count in numbers.items() if count))
        for name, numbers in counts.items()
    ]
    print_table(Table(title, ["source", "count"], 2, rows))
