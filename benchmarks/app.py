"""The command line of the benchmarks: sizes and speeds, measured side by side in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli.common import Device
from scimult.cli.main import Verbs
from scimult.cli.output import print_table

if TYPE_CHECKING:
    import torch

Kind = Literal["rabitq", "pq", "hnsw"]

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
        typer.Option(help="Where to write the library; default: a temporary folder."),
    ] = None,
    papers: Annotated[int, typer.Option(min=100, help="Papers of the library.")] = 20_000,
    citations: Annotated[int, typer.Option(min=1)] = 200_000,
    labels: Annotated[int, typer.Option(min=1)] = 300,
    words: Annotated[int, typer.Option(min=20, help="Words of a paper.")] = 120,
    clean: Annotated[bool, typer.Option("--clean", help="Merge duplicates, too.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of reading.")] = 5,
    most_workers: Annotated[int, typer.Option(min=1, help="Tokenise with 1 to so many.")] = 2,
) -> None:
    """Time and memory of preparing a generated library; the last line is one JSON object."""
    import tempfile
    from dataclasses import asdict

    import torch

    from benchmarks.data import Library, measure_preparation, measure_reading, write_library
    from scimult.data.tokenization import TextTokenizer
    from scimult.preparation.hygiene.config import HygieneConfig

    loaded = None if tokenizer is None else TextTokenizer.from_folder(tokenizer)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        config = write_library(place / "raw", Library(papers, citations, labels, words))
        if clean:
            config.hygiene = HygieneConfig(duplicates="merge")
        costs = []
        for cost in measure_preparation(config, place, loaded, range(1, most_workers + 1)):
            costs.append(cost)
            typer.echo(
                f"{cost.step:24} {cost.wall:9.1f} s  {cost.cpu:9.1f} s of CPU "
                f"{cost.peak_mb:8.0f} MB"
            )
        reading = None if loaded is None else measure_reading(place / "tokens-1", rounds)
    if reading is not None:
        typer.echo(
            f"rows in order: {reading.rows_per_second:,.0f} /s; random order takes "
            f"{reading.random} times as long, the bare memory map {reading.mapped}"
        )
    report = {
        "benchmark": "data",
        "papers": papers,
        "citations": citations,
        "labels": labels,
        "words": words,
        "clean": clean,
        "steps": [asdict(cost) for cost in costs],
        "reading": None if reading is None else reading.as_json(),
        "machine": machine(torch.device("cpu")),
    }
    typer.echo(json.dumps(report))


@app.command()
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


@app.command()
def approximate(
    vectors: Annotated[Path, typer.Option(help="Folder of shards: a space of a library.")],
    rows: Annotated[int, typer.Option(min=10_000, help="Repeated with noise beyond.")] = 1_000_000,
    kinds: Annotated[list[Kind] | None, typer.Option("--kind", help="Default: pq.")] = None,
    queries: Annotated[int, typer.Option(min=8, help="Held out of the vectors.")] = 512,
    target: Annotated[float, typer.Option(help="Recall that is asked for.")] = 0.95,
) -> None:
    """Approximate beside exact search: recall, time, memory; the last line is one JSON object."""
    from benchmarks.approximate import measure_approximate
    from benchmarks.tables import approximate_table

    chosen = kinds or ["pq"]
    costs = measure_approximate(vectors, rows, chosen, queries, target)
    title = f"{costs[0].rows:,} vectors of width {costs[0].width}, {costs[0].real:,} of them real"
    print_table(approximate_table(costs, title))
    typer.echo(json.dumps({"approximate": [cost.as_json() for cost in costs]}))


@app.command()
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

    cost = measure_matching(submissions, reviewers, each, width, needed, most)
    print_table(matching_table(cost))
    report = {"benchmark": "reviewers", **cost.as_json(), "machine": machine(torch.device("cpu"))}
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


@app.command("compare-search")
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


def machine(device: torch.device) -> dict[str, str | int]:
    """Return what a reader of times has to know of the machine."""
    import platform

    import torch

    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    app()
