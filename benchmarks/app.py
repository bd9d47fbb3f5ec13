"""The command line of the benchmarks: sizes and speeds, measured side by side in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.search_verbs import approximate, compare_search, libraries, reviewers, search
from benchmarks.serving_verb import serve
from scimult.cli.main import Verbs
from scimult.cli.options import Device
from scimult.cli.output import print_table

app = typer.Typer(
    help="Sizes and speeds, side by side in one run.",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def variants(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Variants to measure; default: all.", metavar="[NAME]..."),
    ] = None,
    size: Annotated[str, typer.Option(help="bert-base, minilm or tiny.")] = "bert-base",
    tokens: Annotated[int, typer.Option(min=64, help="Tokens of a batch.")] = 1024,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest row.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; all works take turns.")] = 5,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option()] = "float32",
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu: this process's seconds, for a machine that does other work."),
    ] = "wall",
    encode_only: Annotated[bool, typer.Option("--encode-only", help="Time no training.")] = False,
    device: Device = None,
) -> None:
    """Parameters and speed of every variant beside vanilla; the last line is one JSON object."""
    import torch

    from benchmarks.tables import variants_table
    from benchmarks.timing import machine
    from benchmarks.variants import CASES, SIZES, make_load, measure
    from scimult.errors import ConfigError, UnknownNameError
    from scimult.hardware import keep_freed_memory, usable_device
    from scimult.progress import progress

    chosen = names or list(CASES)
    for name in chosen:
        if name not in CASES:
            raise UnknownNameError("variant", name, CASES)
    if size not in SIZES:
        raise UnknownNameError("size", size, SIZES)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    if on_gpu and clock == "cpu":
        raise ConfigError("--clock cpu does not see a GPU's work", fix="use --clock wall")
    where = usable_device(device)
    keep_freed_memory()
    load = make_load(tokens, max_length, where, getattr(torch, dtype), SIZES[size]["vocab_size"])
    found = [
        measure(name, size, load, rounds, clock, encode_only=encode_only)
        for name in progress(chosen, "variants")
    ]
    print_table(variants_table(found, f"{size}, 3 tasks, {load.tokens} tokens a batch"))
    report = {
        "benchmark": "variants",
        "size": size,
        "dtype": dtype,
        "tokens": load.tokens,
        "rounds": rounds,
        "clock": clock,
        "rows": [row.as_json() for row in found],
        "machine": machine(where),
    }
    typer.echo(json.dumps(report))


@app.command()
def train(
    base: Annotated[str, typer.Option(help="Folder of a BERT-like checkpoint and tokenizer.")],
    prepared: Annotated[str, typer.Option(help="Prepared folder: the texts that are trained on.")],
    size: Annotated[
        Literal["base", "bert-base"],
        typer.Option(help="base: its own; bert-base: random weights of that size."),
    ] = "base",
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of a step.")] = 32,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest text.")] = 512,
    chunk_tokens: Annotated[int, typer.Option(min=16, help="Of the embedding cache.")] = 2048,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; all works take turns.")] = 5,
    precision: Annotated[Literal["auto", "fp32", "bf16"], typer.Option()] = "auto",
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu: this process's seconds, for a machine that does other work."),
    ] = "wall",
    processes: Annotated[
        bool, typer.Option(help="Also: two ranks against one, and memory as the batch grows.")
    ] = False,
) -> None:
    """Training steps beside sentence-transformers' own; the last line is one JSON object."""
    from contextlib import nullcontext

    from rich.console import Console

    from benchmarks.compare_training import memory, side_by_side, two_ranks
    from benchmarks.tables import training_table
    from benchmarks.timing import machine
    from benchmarks.training import Setting, random_encoder
    from scimult.training.deepspeed_config import resolve_precision
    from scimult.training.engine import process_group

    with nullcontext(base) if size == "base" else random_encoder(size, base) as folder:
        setting = Setting(folder, prepared, pairs, max_length, dropout=0.1)
        with process_group(600) as device:
            chosen = resolve_precision(precision, device)
            where = machine(device)
            rows = side_by_side(setting, chunk_tokens, device, chosen, rounds, clock)
        report: dict[str, object] = {
            "benchmark": "train",
            "size": size,
            "pairs": pairs,
            "max_length": max_length,
            "chunk_tokens": chunk_tokens,
            "precision": chosen,
            "rounds": rounds,
            "clock": clock,
            "rows": [row.as_json() for row in rows],
            "machine": where,
        }
        print_table(training_table(rows, f"{size}, {pairs} pairs a step, {chosen}"))
        if processes:
            report["two_ranks"] = two_ranks(setting, rounds, chosen)
            report["memory"] = memory(setting, chunk_tokens, chosen)
            Console().print(report["two_ranks"], report["memory"])
    typer.echo(json.dumps(report))


@app.command()
def gradients(
    base: Annotated[str, typer.Option(help="Folder of a BERT-like checkpoint and tokenizer.")],
    prepared: Annotated[str, typer.Option(help="Prepared folder: the texts of the batch.")],
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of the batch.")] = 32,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest text.")] = 512,
    chunks: Annotated[
        list[int] | None,
        typer.Option(help="About so many of the embedding cache; may come again."),
    ] = None,
) -> None:
    """Error of bf16 gradients against fp32 on this CPU; the last line is one JSON object."""
    from dataclasses import asdict

    import torch

    from benchmarks.gradients import gradient_errors
    from benchmarks.tables import gradients_table
    from benchmarks.timing import machine
    from benchmarks.training import Setting

    setting = Setting(base, prepared, pairs, max_length, dropout=0.0)
    tokens, found = gradient_errors(setting, chunks or [50])
    print_table(gradients_table(found, f"{pairs} pairs, {tokens} tokens"))
    report = {
        "benchmark": "gradients",
        "pairs": pairs,
        "tokens": tokens,
        "rows": [asdict(row) for row in found],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


@app.command()
def data(
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Model or tokenizer folder; without one nothing is tokenised."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Keeps everything, and the same command goes on; default: a temporary folder."
        ),
    ] = None,
    papers: Annotated[int, typer.Option(min=100, help="Papers of the library.")] = 20_000,
    citations: Annotated[int, typer.Option(min=1)] = 200_000,
    labels: Annotated[int, typer.Option(min=1)] = 300,
    words: Annotated[int, typer.Option(min=20, help="Words of a paper.")] = 120,
    clean: Annotated[bool, typer.Option("--clean", help="Merge duplicates, too.")] = False,
    memory: Annotated[
        str | None, typer.Option(help="Most that a step may hold, such as 4GB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the engine.")] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Mine so many pairs of citations, or all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of reading.")] = 5,
    most_workers: Annotated[int, typer.Option(min=1, help="Tokenise with 1 to so many.")] = 2,
) -> None:
    """Time, memory and disk of preparing a generated library; the last line is one JSON object."""
    import tempfile
    from contextlib import nullcontext
    from dataclasses import asdict
    from itertools import chain

    import torch

    from benchmarks.data import Work, measure_preparation, measure_reading, measure_tokenising
    from benchmarks.generated import Library
    from benchmarks.timing import machine
    from scimult.data.tokenization import TextTokenizer
    from scimult.preparation.mining.engine import Limits

    loaded = None if tokenizer is None else TextTokenizer.from_folder(tokenizer)
    library = Library(papers, citations, labels, words)
    work = Work(library, clean, Limits(memory, threads), groups)
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as name:
        place = Path(name)
        place.mkdir(exist_ok=True)
        steps = measure_preparation(work, place)
        if loaded is not None:
            steps = chain(steps, measure_tokenising(place, loaded, range(1, most_workers + 1)))
        costs = []
        for cost in steps:
            costs.append(cost)
            typer.echo(json.dumps(asdict(cost)))
        reading = None if loaded is None else measure_reading(place / "tokens-1", rounds)
    if reading is not None:
        typer.echo(
            f"rows in order: {reading.rows_per_second:,.0f} /s; random order takes "
            f"{reading.random} times as long, the bare memory map {reading.mapped}"
        )
    report = {
        "benchmark": "data",
        **work.as_json(),
        "steps": [asdict(cost) for cost in costs],
        "reading": None if reading is None else reading.as_json(),
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


@app.command()
def encode(
    model: Annotated[Path, typer.Option(help="A sentence-transformers folder of a BERT.")],
    papers: Annotated[Path, typer.Option(help="JSON lines of papers (.gz): what is encoded.")],
    texts: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Texts of a call; may come again. Default: 32, 500."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; all ways take turns.")] = 3,
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="cpu: this process's seconds, for a machine that does other work."),
    ] = "wall",
) -> None:
    """Time encoding on this CPU beside sentence-transformers and exported graphs."""
    import torch

    from benchmarks.compare_encoding import encoding_beside, missing_packages
    from benchmarks.tables import encoding_beside_table
    from benchmarks.timing import machine
    from scimult.data.lines import Rejects
    from scimult.inference.collection import read_collection

    read = [text.joined for text in read_collection(papers, "paper", Rejects(True)).texts]
    counts = [count for count in texts or [32, 500] if count <= len(read)]
    rows = list(encoding_beside(model, read, counts, rounds, clock))
    print_table(encoding_beside_table(rows, f"encoding, {clock} seconds", missing_packages()))
    report = {
        "benchmark": "encode",
        "clock": clock,
        "rounds": rounds,
        "rows": [row.as_json() for row in rows],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


for verb in (search, approximate, compare_search, libraries, reviewers, serve):
    app.command(verb.__name__.replace("_", "-"))(verb)


if __name__ == "__main__":
    app()
