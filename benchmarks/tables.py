"""Tables of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scimult.table import Table, texts

if TYPE_CHECKING:
    from benchmarks.approximate import ApproximateCost
    from benchmarks.compare_encoding import EncodingComparison
    from benchmarks.compare_search import SearchComparison
    from benchmarks.compare_training import TrainingRow
    from benchmarks.gradients import GradientErrors
    from benchmarks.libraries import LibraryCost
    from benchmarks.reviewers import MatchingCost
    from benchmarks.search import SearchCost
    from benchmarks.serving import ServingCost, Soak
    from benchmarks.variants import Measurement


def variants_table(rows: Sequence[Measurement], title: str) -> Table:
    """Return sizes and relative times of the model variants."""
    sizes = ["parameters", "trained", "active", "MB"]
    headings = ["variant", *sizes, "train", "encode", "mixed", "all tasks"]
    cells = []
    for row in rows:
        counts = [f"{n / 1e6:.2f}" for n in (row.parameters, row.trainable, row.active)]
        times = [
            "" if time is None else f"{time.median:.2f}"
            for time in (row.train, row.encode, row.mixed, row.encode_all)
        ]
        cells.append(texts(row.name, *counts, f"{row.megabytes:.0f}", *times))
    note = "parameters in millions; times relative to vanilla; mixed, all tasks: to a single task"
    return Table(title, headings, 1, cells, [note])


def training_table(rows: Sequence[TrainingRow], title: str) -> Table:
    """Return our training steps next to those of sentence-transformers."""
    headings = ["dropout", "ours", "theirs", "padding", "faster", "cached"]
    cells = [
        texts(
            row.dropout,
            f"{row.ours:,.0f}",
            f"{row.theirs:,.0f}",
            f"{row.padding:.0%}",
            row.faster,
            row.cached,
        )
        for row in rows
    ]
    note = (
        "ours, theirs (sentence-transformers): real tokens per second; padding: of theirs; faster: "
        "their time over ours; cached: our time with the embedding cache over ours without"
    )
    return Table(title, headings, 0, cells, [note])


def gradients_table(rows: Sequence[GradientErrors], title: str) -> Table:
    """Return the errors of each group of parameters by the number of chunks."""
    passes = ["one pass" if row.chunks == 1 else f"{row.chunks} chunks" for row in rows]
    cells = []
    for group in rows[0].groups:
        errors = [row.groups[group] for row in rows]
        cells.append(texts(group, *(f"{whole:.2%} ({worst:.2%})" for whole, worst in errors)))
    note = "error of bf16 over the norm of fp32: of the group (of its worst tensor)"
    return Table(title, ["gradient of", *passes], 1, cells, [note])


def search_table(rows: Sequence[SearchCost], title: str) -> Table:
    """Return time and memory of exact search."""
    times = ["seconds", "× bare", "+ names", "whole"]
    headings = ["shape", "queries", "candidates", "searched", *times, "peak", "whole"]
    cells = []
    for row in rows:
        counts = [f"{row.queries:,}", f"{row.candidates:,}", f"{100 * row.fraction:.1f}%"]
        with_names = "–" if row.ratio_with_names is None else f"{row.ratio_with_names:.2f}"
        seconds = [f"{row.seconds:.1f}", f"{row.ratio:.2f}", with_names]
        memory = [f"{size / 2**30:.2f} GiB" for size in (row.peak_bytes, row.whole_bytes)]
        whole = f"{row.whole_seconds:,.0f} s"
        cells.append(texts(row.name, *counts, *seconds, whole, *memory))
    note = (
        "bare: only products and top-k of each block; + names: with name matching; "
        "whole: all queries, extrapolated"
    )
    return Table(title, headings, 1, cells, [note])


def search_comparison_table(rows: Sequence[SearchComparison], title: str) -> Table:
    """Return the milliseconds of each search by the number of queries."""
    names = list(rows[0].seconds)
    cells = []
    for row in rows:
        seconds = [f"{1e3 * row.seconds[name]:,.1f}" for name in names]
        faster = "–" if row.faster is None else str(row.faster)
        load = f"{row.load[0]:.1f}, {row.load[1]:.1f}"
        sizes = f"{row.candidates:,}", f"{row.queries:,}"
        cells.append(texts(*sizes, *seconds, faster, f"{row.recall:.4f}", load))
    notes = ["milliseconds; faster: faiss at its better setting over ours; recall: of float64"]
    if rows[0].faster is None:
        notes.append("faiss is not installed: pip install faiss-cpu")
    headings = ["candidates", "queries", *names, "faster", "recall", "load"]
    return Table(title, headings, 1, cells, notes)


def encoding_comparison_table(
    rows: Sequence[EncodingComparison], title: str, missing: list[str]
) -> Table:
    """Return tokens per second of each encoder by the number of texts."""
    cells = []
    for row in rows:
        for name, seconds in row.seconds.items():
            rate = f"{row.tokens / seconds:,.0f}"
            cells.append(texts(f"{row.texts:,}", name, rate, f"{row.cosines[name]:.6f}"))
    notes = ["cosine: the smallest with ours in float32"]
    notes += [
        f"{row.texts:,} texts, {name}: ours is {faster} times as fast; load {row.load[0]:.1f}, "
        f"{row.load[1]:.1f}"
        for row in rows
        for name, faster in row.faster.items()
    ]
    notes += [f"not installed: {command}" for command in missing]
    return Table(title, ["texts", "encoder", "tokens/s", "cosine"], 2, cells, notes)


def approximate_table(rows: Sequence[ApproximateCost], title: str) -> Table:
    """Return indexes next to exact search."""
    headings = ["kind", "recall@10", "lists", "per result", "ms", "exact ms", "times", "alone"]
    cells = []
    for row in rows:
        ratios = row.as_json()
        cells.append(
            texts(
                row.kind,
                f"{row.recall:.3f}",
                row.effort,
                row.candidates,
                f"{row.approximate_ms:.3f}",
                f"{row.exact_ms:.2f}",
                f"{ratios['times_exact']:.0f}",
                f"{ratios['times_exact_alone']:.0f}",
            )
        )
    sizes = ", ".join(f"{row.kind} {row.bytes_per_vector:.0f}" for row in rows)
    note = f"CPU time per query; alone: one query at a time; bytes per vector: {sizes}"
    return Table(title, headings, 1, cells, [note])


def matching_table(cost: MatchingCost) -> Table:
    """Return the cost of both steps of a matching."""
    cells = [
        texts("scores", f"{cost.score_seconds:.1f}", f"{cost.score_cpu:.1f}"),
        texts("assignment", f"{cost.assign_seconds:.1f}", f"{cost.assign_cpu:.1f}"),
    ]
    title = (
        f"{cost.submissions:,} submissions, {cost.reviewers:,} reviewers with "
        f"{cost.publications:,} publications of width {cost.width}"
    )
    note = f"programme solved {cost.rounds} times; peak {cost.peak_megabytes:,.0f} MB"
    return Table(title, ["step", "seconds", "CPU seconds"], 1, cells, [note])


def libraries_table(costs: Sequence[LibraryCost]) -> Table:
    """Return the cost of each step by the number of papers."""
    cells = [
        texts(
            step,
            *(f"{c.steps[step].seconds:.1f} / {c.steps[step].cpu:.1f}" for c in costs),
            *(f"{c.steps[step].peak_megabytes:,.0f}" for c in costs),
        )
        for step in costs[0].steps
    ]
    sizes = [f"{cost.papers:,}" for cost in costs]
    headings = ["step", *sizes, *(f"MB, {size}" for size in sizes)]
    on_disk = ", ".join(f"{cost.gigabytes:.2f}" for cost in costs)
    note = f"seconds / CPU seconds; MB: peak of the largest process; on disk {on_disk} GB"
    return Table("libraries by size", headings, 1, cells, [note])


def serving_table(cost: ServingCost) -> Table:
    """Return the cost of a service relative to its model."""
    rows = [
        texts("texts per second, one call", f"{cost.bulk:,.1f}"),
        texts("texts per second, served", f"{cost.served:,.1f}"),
        texts("share of the one call's rate", cost.share),
        texts("CPU time of the service over the call's", cost.cpu),
        texts("p50, p99 in milliseconds", f"{cost.p50:,.0f}, {cost.p99:,.0f}"),
        texts("answers checked, wrong", f"{cost.checked:,}, {cost.wrong:,}"),
    ]
    title = f"{cost.clients} clients, {cost.texts:,} texts of {cost.tokens:.0f} tokens"
    return Table(title, ["quantity", "value"], 1, rows)


def soak_table(soak: Soak) -> Table:
    """Return the memory of a service over a long run."""
    cells = [
        texts(f"{tenth * soak.requests // 10:,}", f"{size:,.1f}")
        for tenth, size in enumerate(soak.megabytes, start=1)
    ]
    note = f"{soak.per_second:,.0f} requests per second, {soak.wrong:,} wrong answers"
    note += "".join(f", {count:,} of status {code}" for code, count in soak.refused.items())
    return Table("memory of the service", ["requests", "megabytes"], 1, cells, [note])
