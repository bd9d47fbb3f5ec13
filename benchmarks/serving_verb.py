"""The verb of the benchmarks that loads a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.output import print_table


def serve(
    model: Annotated[Path, typer.Option(help="What encodes: a run, a saved model.")],
    papers: Annotated[Path, typer.Option(help="JSON lines of papers (.gz): what is encoded.")],
    texts: Annotated[int, typer.Option(min=8, help="Papers of a round.")] = 640,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; bulk and service take turns.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 2,
    titles: Annotated[
        bool, typer.Option("--titles", help="Titles alone: short texts, where requests weigh most.")
    ] = False,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], typer.Option(help="What the model computes in.")
    ] = "auto",
    soak: Annotated[int, typer.Option(min=0, help="Then ask so often, and watch the memory.")] = 0,
) -> None:
    """Load a service beside one call of its model; the last line is one JSON object."""
    import tempfile

    import torch

    from benchmarks.serving import measure_serving, measure_soak
    from benchmarks.tables import serving_table, soak_table
    from benchmarks.timing import load_average, machine
    from scimult.data.lines import Rejects
    from scimult.inference.collection import read_collection
    from scimult.library import Library

    read = read_collection(papers, "paper", Rejects(True))
    rows = [
        {"title": text.title, "abstract": "" if titles else text.body}
        for text in read.texts[:texts]
        if text.title
    ]
    named = [{"id": str(number), **row} for number, row in enumerate(rows)]
    report: dict[str, object] = {"benchmark": "serve", "machine": machine(torch.device("cpu"))}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        Library.create(library, named, model=model.resolve(), dtype=dtype)
        cost = measure_serving(library, rows, clients, rounds, threads)
        print_table(serving_table(cost))
        report["serving"] = cost.as_json()
        if soak:
            found = measure_soak(library, soak, clients, threads)
            print_table(soak_table(found))
            report["soak"] = found.as_json()
    report["load"] = load_average()
    typer.echo(json.dumps(report))
