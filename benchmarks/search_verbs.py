"""Benchmark verbs that search and match reviewers, and options they share with others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from scimult.cli.output import print_table

Clock = Annotated[
    Literal["wall", "cpu"],
    typer.Option(help="cpu: CPU seconds of this process, for busy machines."),
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds, in which all methods take turns.")]


def search(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Shapes to measure. Default: all.", metavar="[NAME]..."),
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 768,
    k: Annotated[int, typer.Option(min=1, help="Results per query.")] = 100,
    fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the queries to search.")
    ] = 1.0,
    clock: Clock = "wall",
) -> None:
    """Measure exact search at the sizes of SciMult's Table A2; the last line is a JSON object."""
    import torch

    from benchmarks.search import SHAPES, measure_search
    from benchmarks.tables import search_table
    from benchmarks.timing import machine
    from scimult.errors import UnknownNameError
    from scimult.progress import progress

    names = names or list(SHAPES)
    for name in names:
        if name not in SHAPES:
            raise UnknownNameError("shape", name, SHAPES)
    rows = [measure_search(name, width, k, fraction, clock) for name in progress(names, "shapes")]
    title = f"exact search, width {width}, top {k}, {clock} seconds"
    print_table(search_table(rows, title))
    report = {
        "benchmark": "search",
        "width": width,
        "k": k,
        "clock": clock,
        "rows": [row.as_json() for row in rows],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


def approximate(
    vectors: Annotated[Path, typer.Option(help="Folder of shards, such as a library's vectors.")],
    rows: Annotated[
        int, typer.Option(min=10_000, help="Vectors to index, repeated with noise as needed.")
    ] = 1_000_000,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help="pq, rabitq or hnsw (repeatable). Default: pq."),
    ] = None,
    queries: Annotated[int, typer.Option(min=8, help="Vectors to hold out as queries.")] = 512,
    target: Annotated[float, typer.Option(help="Target recall.")] = 0.95,
) -> None:
    """Compare approximate with exact search; the last line is a JSON object."""
    from benchmarks.approximate import measure_approximate
    from benchmarks.tables import approximate_table
    from scimult.errors import UnknownNameError
    from scimult.library.approximate import Kind
    from scimult.library.building import FACTORIES

    kinds = kinds or ["pq"]
    for kind in kinds:
        if kind not in FACTORIES:
            raise UnknownNameError("kind of index", kind, FACTORIES)
    ordered: list[Kind] = [kind for kind in get_args(Kind) if kind in kinds]
    costs = measure_approximate(vectors, rows, ordered, queries, target)
    title = f"{costs[0].rows:,} vectors of width {costs[0].width}, {costs[0].real:,} of them real"
    print_table(approximate_table(costs, title))
    typer.echo(json.dumps({"approximate": [cost.as_json() for cost in costs]}))


def libraries(
    model: Annotated[Path, typer.Option(help="Model to encode queries with.")],
    sizes: Annotated[
        list[int] | None,
        typer.Option(
            "--papers", min=2000, help="Papers (repeatable). Default: 50,000, 100,000, 200,000."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that build an index in parts.")
    ] = 2,
) -> None:
    """Create, index, search and sync libraries of growing size; the last line is a JSON object."""
    import torch

    from benchmarks.libraries import measure_libraries
    from benchmarks.tables import libraries_table
    from benchmarks.timing import machine

    costs = list(measure_libraries(model, sizes or [50_000, 100_000, 200_000], processes))
    print_table(libraries_table(costs))
    rows = [asdict(cost) for cost in costs]
    report = {"benchmark": "libraries", "rows": rows, "machine": machine(torch.device("cpu"))}
    typer.echo(json.dumps(report))


def reviewers(
    submissions: Annotated[int, typer.Option(min=1, help="Papers to review.")] = 2_200,
    reviewers: Annotated[int, typer.Option(min=1, help="Number of reviewers.")] = 2_500,
    each: Annotated[int, typer.Option(min=1, help="Average publications per reviewer.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 384,
    needed: Annotated[int, typer.Option(min=1, help="Reviewers per submission.")] = 3,
    most: Annotated[int, typer.Option(min=1, help="Most submissions per reviewer.")] = 4,
) -> None:
    """Score and assign reviewers of a generated venue; the last line is a JSON object."""
    import torch

    from benchmarks.reviewers import measure_matching
    from benchmarks.tables import matching_table
    from benchmarks.timing import machine

    cost = measure_matching(submissions, reviewers, each, width, needed, most)
    print_table(matching_table(cost))
    report = {"benchmark": "reviewers", **asdict(cost), "machine": machine(torch.device("cpu"))}
    typer.echo(json.dumps(report))


def compare_search(
    queries: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Queries per search (repeatable). Default: 1, 32, 1024."),
    ] = None,
    candidates: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Candidates per index (repeatable). Default: 200,000."),
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 768,
    k: Annotated[int, typer.Option(min=1, help="Results per query.")] = 100,
    rounds: Rounds = 5,
    clock: Clock = "wall",
) -> None:
    """Compare exact search with faiss; the last line is a JSON object."""
    import torch

    from benchmarks.compare_search import search_comparisons
    from benchmarks.tables import search_comparison_table
    from benchmarks.timing import machine
    from scimult.heap import keep_freed_memory

    keep_freed_memory()
    rows = [
        row
        for count in candidates or [200_000]
        for row in search_comparisons(queries or [1, 32, 1024], count, width, k, rounds, clock)
    ]
    title = f"top {k} of candidates of width {width}, {clock} seconds"
    print_table(search_comparison_table(rows, title))
    report = {
        "benchmark": "compare-search",
        "clock": clock,
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))
