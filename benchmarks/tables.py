"""The tables that benchmarks print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.compare_training import TrainingRow
    from benchmarks.gradients import GradientErrors
    from benchmarks.search import SearchCost
    from benchmarks.variants import Measurement


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
