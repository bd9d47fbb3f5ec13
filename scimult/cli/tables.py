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
    from scimult.benchmarks.compare_training import TrainingRow
    from scimult.benchmarks.gradients import GradientErrors
    from scimult.benchmarks.search import SearchCost
    from scimult.benchmarks.variants import Measurement
    from scimult.data.sources import PublicSource


def print_prepared(data: PreparedData) -> None:
    """Print what a prepared folder holds: counts per source, then pairs and negatives."""
    console = Console()
    sources = Table(title=plain(f"{data.folder}: {len(data.texts):,} texts"), box=box.SIMPLE)
    sources.add_column("source", no_wrap=True)
    sources.add_column("count", overflow="fold")
    for source in data.manifest["sources"]:
        counts = [f"{count:,} {what}" for what, count in source["counts"].items() if count]
        sources.add_row(source["name"], ", ".join(counts))
    console.print(sources)
    pairs = Table(box=box.SIMPLE)
    pairs.add_column("source", overflow="fold", min_width=12)
    for name in ("task", "split"):
        pairs.add_column(name, no_wrap=True)
    names = ["queries", "groups", "pairs"]
    if any(entry["unsampled"] for entry in data.manifest["pairs"]):
        names.append("unsampled")
    for name in (*names, "mined"):
        pairs.add_column(name, justify="right", no_wrap=True)
    for entry in data.manifest["pairs"]:
        mined = entry["with_negatives"] / max(entry["groups"], 1)
        counts = [f"{entry[name]:,}" for name in names]
        pairs.add_row(entry["source"], entry["task"], entry["split"], *counts, f"{mined:.1%}")
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


def variants_table(rows: Sequence[Measurement], title: str) -> Table:
    """Return sizes and relative times of the model variants."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    table.add_column("variant", no_wrap=True)
    headings = ("parameters", "trained", "active", "MB", "train", "encode", "mixed")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        counts = [f"{n / 1e6:.2f}" for n in (row.parameters, row.trainable, row.active)]
        times = [
            "" if time is None else f"{time.median:.2f}"
            for time in (row.train, row.encode, row.mixed)
        ]
        table.add_row(row.name, *counts, f"{row.megabytes:.0f}", *times)
    table.caption = "parameters in millions; times relative to vanilla (mixed: to one task alone)"
    return table


def training_table(rows: Sequence[TrainingRow], title: str) -> Table:
    """Return training steps of ours beside those of sentence-transformers."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    headings = ("dropout", "ours", "theirs", "padding", "faster", "cached")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        rates = [f"{rate:,.0f}" for rate in (row.ours, row.theirs)]
        ratios = [str(row.faster), str(row.cached)]
        table.add_row(f"{row.dropout}", *rates, f"{row.padding:.0%}", *ratios)
    table.caption = (
        "ours, theirs (sentence-transformers): real tokens a second; padding: of theirs; faster: "
        "their time over ours; cached: our time with the embedding cache over ours without"
    )
    return table


def gradients_table(rows: Sequence[GradientErrors], title: str) -> Table:
    """Return the errors of each group of parameters, by the number of chunks."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    table.add_column("gradient of", no_wrap=True)
    for row in rows:
        name = "one pass" if row.chunks == 1 else f"{row.chunks} chunks"
        table.add_column(name, justify="right", no_wrap=True)
    for group in rows[0].groups:
        errors = [row.groups[group] for row in rows]
        table.add_row(group, *(f"{whole:.2%} ({worst:.2%})" for whole, worst in errors))
    table.caption = "error of bf16 over the norm of fp32's: of the group, of its worst tensor"
    return table


def search_table(rows: Sequence[SearchCost], title: str) -> Table:
    """Return time and memory of exact search."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    table.add_column("shape", no_wrap=True)
    headings = (
        "queries",
        "candidates",
        "searched",
        "seconds",
        "× bare",
        "+ names",
        "whole",
        "peak",
        "whole",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        counts = [f"{row.queries:,}", f"{row.candidates:,}", f"{100 * row.fraction:.1f}%"]
        with_names = "–" if row.ratio_with_names is None else f"{row.ratio_with_names:.2f}"
        times = [f"{row.seconds:.1f}", f"{row.ratio:.2f}", with_names]
        times.append(f"{row.whole_seconds:,.0f} s")
        memory = [f"{size / 2**30:.2f} GiB" for size in (row.peak_bytes, row.whole_bytes)]
        table.add_row(row.name, *counts, *times, *memory)
    table.caption = (
        "bare: products and top-k of each block alone; + names: with name matching; "
        "whole: all queries, computed"
    )
    return table
