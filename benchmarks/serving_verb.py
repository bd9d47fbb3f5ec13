"""The benchmark verb that puts load on a service."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.search_verbs import Rounds
from scimult.cli.output import print_table


def serve(
    model: Annotated[Path, typer.Option(help="Run or saved model to encode with.")],
    papers: Annotated[Path, typer.Option(help="JSON lines of papers to encode (.gz).")],
    texts: Annotated[int, typer.Option(min=8, help="Papers per round.")] = 640,
    clients: Annotated[int, typer.Option(min=1, help="Concurrent clients.")] = 32,
    rounds: Rounds = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 2,
    titles: Annotated[
        bool,
        typer.Option(
            "--titles", help="Titles only: short texts, where requests cost relatively most."
        ),
    ] = False,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], typer.Option(help="Compute type.")
    ] = "auto",
    soak: Annotated[
        int, typer.Option(min=0, help="Requests of a final long run that watches the memory.")
    ] = 0,
) -> None:
    """Compare a service under load with one call of its model; the last line is a JSON object."""
    import tempfile

    import torch

    from benchmarks.serving import measure_serving, measure_soak
    from benchmarks.tables import serving_table, soak_table
    from benchmarks.timing import load_average, machine
    from scimult.data.records import Rejects
    from scimult.inference.collection import read_collection
    from scimult.library import Library

    collection = read_collection(papers, "paper", Rejects(True))
    rows = [
        {"title": text.title, "abstract": "" if titles else text.body}
        for text in collection.texts[:texts]
        if text.title
    ]
    with_ids = [{"id": str(number), **row} for number, row in enumerate(rows)]
    report: dict[str, object] = {"benchmark": "serve"}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        Library.create(library, with_ids, model=model.resolve(), dtype=dtype)
        cost = measure_serving(library, rows, clients, rounds, threads)
        print_table(serving_table(cost))
        report["serving"] = asdict(cost)
        # Of the call, which got --threads.
        report["machine"] = machine(torch.device("cpu"))
        if soak:
            long_run = measure_soak(library, soak, clients, threads)
            print_table(soak_table(long_run))
            report["soak"] = asdict(long_run)
    report["load"] = load_average()
    typer.echo(json.dumps(report))
