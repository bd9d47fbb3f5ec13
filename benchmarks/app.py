"""The command line of the benchmarks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.search_verbs import (
    Clock,
    Rounds,
    approximate,
    compare_search,
    libraries,
    reviewers,
    search,
)
from benchmarks.serving_verb import serve
from scimult.cli.main import Verbs
from scimult.cli.options import Device
from scimult.cli.output import print_table

Base = Annotated[str, typer.Option(help="Folder of a BERT-like checkpoint and tokenizer.")]
app = typer.Typer(
    help="Measure sizes and speeds, side by side in one run.",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def variants(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Variants to measure. Default: all.", metavar="[NAME]..."),
    ] = None,
    size: Annotated[str, typer.Option(help="bert-base, minilm or tiny.")] = "bert-base",
    tokens: Annotated[int, typer.Option(min=64, help="Tokens per batch.")] = 1024,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest row.")] = 128,
    rounds: Rounds = 5,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Compute type.")
    ] = "float32",
    clock: Clock = "wall",
    encode_only: Annotated[bool, typer.Option("--encode-only", help="Time no training.")] = False,
    device: Device = None,
) -> None:
    """Compare parameters and speed of variants with vanilla; the last line is a JSON object."""
    import torch

    from benchmarks.tables import variants_table
    from benchmarks.timing import machine
    from benchmarks.variants import CASES, SIZES, make_load, measure
    from scimult.errors import ConfigError, UnknownNameError
    from scimult.hardware import usable_device
    from scimult.heap import keep_freed_memory
    from scimult.progress import progress

    names = names or list(CASES)
    for name in names:
        if name not in CASES:
            raise UnknownNameError("variant", name, CASES)
    if size not in SIZES:
        raise UnknownNameError("size", size, SIZES)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    if on_gpu and clock == "cpu":
        raise ConfigError("--clock cpu cannot time a GPU", fix="use --clock wall")
    on = usable_device(device)
    keep_freed_memory()
    load = make_load(tokens, max_length, on, getattr(torch, dtype), SIZES[size]["vocab_size"])
    rows = [
        measure(name, size, load, rounds, clock, encode_only=encode_only)
        for name in progress(names, "variants")
    ]
    print_table(variants_table(rows, f"{size}, 3 tasks, {load.tokens} tokens per batch"))
    report = {
        "benchmark": "variants",
        "size": size,
        "dtype": dtype,
        "tokens": load.tokens,
        "rounds": rounds,
        "clock": clock,
        "rows": [row.as_json() for row in rows],
        "machine": machine(on),
    }
    typer.echo(json.dumps(report))


@app.command()
def train(
    base: Base,
    prepared: Annotated[str, typer.Option(help="Folder with the prepared data to train on.")],
    size: Annotated[
        Literal["base", "bert-base"],
        typer.Option(help="base: that of --base; bert-base: random weights of that size."),
    ] = "base",
    pairs: Annotated[int, typer.Option(min=2, help="Pairs per step.")] = 32,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest text.")] = 512,
    chunk_tokens: Annotated[
        int, typer.Option(min=16, help="Tokens per chunk of the embedding cache.")
    ] = 2048,
    rounds: Rounds = 5,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="Training precision.")
    ] = "auto",
    clock: Clock = "wall",
    processes: Annotated[
        bool, typer.Option(help="Also compare two ranks with one, and memory of larger batches.")
    ] = False,
) -> None:
    """Compare training steps with sentence-transformers; the last line is a JSON object."""
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
            number_type = resolve_precision(precision, device)
            facts = machine(device)
            rows = side_by_side(setting, chunk_tokens, device, number_type, rounds, clock)
        report: dict[str, object] = {
            "benchmark": "train",
            "size": size,
            "pairs": pairs,
            "max_length": max_length,
            "chunk_tokens": chunk_tokens,
            "precision": number_type,
            "rounds": rounds,
            "clock": clock,
            "rows": [asdict(row) for row in rows],
            "machine": facts,
        }
        print_table(training_table(rows, f"{size}, {pairs} pairs per step, {number_type}"))
        if processes:
            report["two_ranks"] = two_ranks(setting, rounds, number_type)
            report["memory"] = memory(setting, chunk_tokens, number_type)
            Console().print(report["two_ranks"], report["memory"])
    typer.echo(json.dumps(report))


@app.command()
def gradients(
    base: Base,
    prepared: Annotated[str, typer.Option(help="Folder with the prepared data of the batch.")],
    pairs: Annotated[int, typer.Option(min=2, help="Pairs per batch.")] = 32,
    max_length: Annotated[int, typer.Option(min=8, max=512, help="Longest text.")] = 512,
    chunks: Annotated[
        list[int] | None,
        typer.Option(help="Approximate chunks of the embedding cache (repeatable). Default: 50."),
    ] = None,
) -> None:
    """Measure errors of bf16 gradients against fp32 on this CPU; the last line is a JSON object."""
    import torch

    from benchmarks.gradients import gradient_errors
    from benchmarks.tables import gradients_table
    from benchmarks.timing import machine
    from benchmarks.training import Setting

    setting = Setting(base, prepared, pairs, max_length, dropout=0.0)
    tokens, errors = gradient_errors(setting, chunks or [50])
    print_table(gradients_table(errors, f"{pairs} pairs, {tokens} tokens"))
    report = {
        "benchmark": "gradients",
        "pairs": pairs,
        "tokens": tokens,
        "rows": [asdict(row) for row in errors],
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
            help="Folder to keep everything in, so that the same command resumes. Default: a "
            "temporary folder."
        ),
    ] = None,
    papers: Annotated[int, typer.Option(min=100, help="Papers in the library.")] = 20_000,
    citations: Annotated[int, typer.Option(min=1, help="Citations in the library.")] = 200_000,
    labels: Annotated[int, typer.Option(min=1, help="Labels in the library.")] = 300,
    words: Annotated[int, typer.Option(min=20, help="Words per paper.")] = 120,
    clean: Annotated[bool, typer.Option("--clean", help="Also merge duplicates.")] = False,
    memory: Annotated[str | None, typer.Option(help="Memory limit of a step, such as 4GB.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Engine threads.")] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Citation pairs to mine. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of reading.")] = 5,
) -> None:
    """Measure time, memory and disk of preparing a library; the last line is a JSON object."""
    import tempfile
    from contextlib import nullcontext
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
        path = Path(name)
        path.mkdir(exist_ok=True)
        steps = measure_preparation(work, path)
        if loaded is not None:
            steps = chain(steps, measure_tokenising(path, loaded))
        costs = []
        for cost in steps:
            costs.append(cost)
            typer.echo(json.dumps(asdict(cost)))
        reading = None if loaded is None else measure_reading(path / "tokens", rounds)
    if reading is not None:
        typer.echo(
            f"rows in order: {reading.rows_per_second:,.0f} /s; random order takes "
            f"{reading.random} times as long, the plain memory map {reading.mapped}"
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
    model: Annotated[Path, typer.Option(help="sentence-transformers folder of a BERT.")],
    papers: Annotated[Path, typer.Option(help="JSON lines of papers to encode (.gz).")],
    texts: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Texts per call (repeatable). Default: 32, 500."),
    ] = None,
    rounds: Rounds = 3,
    clock: Clock = "wall",
) -> None:
    """Compare encoding on this CPU with sentence-transformers and exported graphs."""
    import torch

    from benchmarks.compare_encoding import encoding_comparisons, missing_packages
    from benchmarks.tables import encoding_comparison_table
    from benchmarks.timing import machine
    from scimult.data.records import Rejects
    from scimult.inference.collection import read_collection

    joined = [text.joined for text in read_collection(papers, "paper", Rejects(True)).texts]
    counts = [count for count in texts or [32, 500] if count <= len(joined)]
    rows = list(encoding_comparisons(model, joined, counts, rounds, clock))
    print_table(encoding_comparison_table(rows, f"encoding, {clock} seconds", missing_packages()))
    report = {
        "benchmark": "encode",
        "clock": clock,
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


for verb in (search, approximate, compare_search, libraries, reviewers, serve):
    app.command(verb.__name__.replace("_", "-"))(verb)


if __name__ == "__main__":
    app()
