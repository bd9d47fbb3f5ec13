"""Verbs of the benchmarks that search, and match reviewers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from scimult.cli.output import print_table


def search(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Shapes to measure; default: all.", metavar="[NAME]..."),
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 768,
    k: Annotated[int, typer.Option(min=1, help="Length of the lists.")] = 100,
    fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the queries that is searched.")
    ] = 1.0,
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu: this process's seconds, for a machine that does other work."),
    ] = "wall",
) -> None:
    """Exact search at the sizes of SciMult's Table A2; the last line is one JSON object."""
    import torch

    from benchmarks.search import SHAPES, measure_search
    from benchmarks.tables import search_table
    from benchmarks.timing import machine
    from scimult.errors import UnknownNameError
    from scimult.progress import progress

    chosen = names or list(SHAPES)
    for name in chosen:
        if name not in SHAPES:
            raise UnknownNameError("shape", name, SHAPES)
    found = [measure_search(name, width, k, fraction, clock) for name in progress(chosen, "shapes")]
    title = f"exact search, width {width}, best {k}, {clock} seconds"
    print_table(search_table(found, title))
    report = {
        "benchmark": "search",
        "width": width,
        "k": k,
        "clock": clock,
        "rows": [row.as_json() for row in found],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


def approximate(
    vectors: Annotated[Path, typer.Option(help="Folder of shards: a space of a library.")],
    rows: Annotated[int, typer.Option(min=10_000, help="Repeated with noise beyond.")] = 1_000_000,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="pq, rabitq or hnsw; default: pq.")
    ] = None,
    queries: Annotated[int, typer.Option(min=8, help="Held out of the vectors.")] = 512,
    target: Annotated[float, typer.Option(help="Recall that is asked for.")] = 0.95,
) -> None:
    """Approximate beside exact search: recall, time, memory; the last line is one JSON object."""
    from benchmarks.approximate import measure_approximate
    from benchmarks.tables import approximate_table
    from scimult.errors import UnknownNameError
    from scimult.library.approximate import Kind
    from scimult.library.building import FACTORIES

    chosen = kinds or ["pq"]
    for kind in chosen:
        if kind not in FACTORIES:
            raise UnknownNameError("kind of index", kind, FACTORIES)
    of_kinds: list[Kind] = [kind for kind in get_args(Kind) if kind in chosen]
    costs = measure_approximate(vectors, rows, of_kinds, queries, target)
    title = f"{costs[0].rows:,} vectors of width {costs[0].width}, {costs[0].real:,} of them real"
    print_table(approximate_table(costs, title))
    typer.echo(json.dumps({"approximate": [cost.as_json() for cost in costs]}))


def libraries(
    model: Annotated[Path, typer.Option(help="Model whose queries search.")],
    sizes: Annotated[
        list[int] | None, typer.Option("--papers", min=2000, help="May come again.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="That share the making of an index.")] = 2,
) -> None:
    """Make, index, search and sync libraries that grow; the last line is one JSON object."""
    import torch

    from benchmarks.libraries import measure_libraries
    from benchmarks.tables import libraries_table
    from benchmarks.timing import machine

    costs = list(measure_libraries(model, sizes or [50_000, 100_000, 200_000], processes))
    print_table(libraries_table(costs))
    rows = [cost.as_json() for cost in costs]
    report = {"benchmark": "libraries", "rows": rows, "machine": machine(torch.device("cpu"))}
    typer.echo(json.dumps(report))


def reviewers(
    submissions: Annotated[int, typer.Option(min=1, help="Papers to review.")] = 2_200,
    reviewers: Annotated[int, typer.Option(min=1, help="Who reviews.")] = 2_500,
    each: Annotated[int, typer.Option(min=1, help="Publications of a reviewer, on average.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 384,
    needed: Annotated[int, typer.Option(min=1, help="Reviewers of a submission.")] = 3,
    most: Annotated[int, typer.Option(min=1, help="Submissions of a reviewer, at most.")] = 4,
) -> None:
    """Score and assign reviewers of a made-up venue; the last line is one JSON object."""
    import torch

    from benchmarks.reviewers import measure_matching
    from benchmarks.tables import matching_table
    from benchmarks.timing import machine

    cost = measure_matching(submissions, reviewers, each, width, needed, most)
    print_table(matching_table(cost))
    report = {"benchmark": "reviewers", **cost.as_json(), "machine": machine(torch.device("cpu"))}
    typer.echo(json.dumps(report))


def compare_search(
    queries: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Queries of a search; may come again. Default: 1, 32, 1024."),
    ] = None,
    candidates: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Candidates of an index; may come again. Default: 200,000."),
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Dimensions of an embedding.")] = 768,
    k: Annotated[int, typer.Option(min=1, help="Length of the lists.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; all ways take turns.")] = 5,
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu: this process's seconds, for a machine that does other work."),
    ] = "wall",
) -> None:
    """Exact search beside faiss; the last line is one JSON object."""
    import torch

    from benchmarks.compare_search import search_beside
    from benchmarks.tables import search_beside_table
    from benchmarks.timing import machine
    from scimult.hardware import keep_freed_memory

    keep_freed_memory()
    rows = [
        row
        for count in candidates or [200_000]
        for row in search_beside(queries or [1, 32, 1024], count, width, k, rounds, clock)
    ]
    title = f"best {k} of candidates of width {width}, {clock} seconds"
    print_table(search_beside_table(rows, title))
    report = {
        "benchmark": "compare-search",
        "clock": clock,
        "rounds": rounds,
        "rows": [row.as_json() for row in rows],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))
