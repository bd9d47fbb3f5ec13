"""``scimult benchmark``: sizes and speeds, measured side by side in one run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from scimult.cli.common import Device

if TYPE_CHECKING:
    import torch

app = typer.Typer(no_args_is_help=True, help="Sizes and speeds, side by side in one run.")


@app.command()
def variants(
    names: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
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
    device: Device = None,
) -> None:
    """Parameters and speed of every variant beside vanilla; the last line is one JSON object."""
    import torch
    from rich.console import Console

    from scimult.benchmarks.variants import CASES, SIZES, make_load, measure
    from scimult.cli.tables import variants_table
    from scimult.errors import ConfigError, UnknownNameError
    from scimult.hardware import keep_freed_memory
    from scimult.progress import progress

    chosen = names or list(CASES)
    for name in chosen:
        if name not in CASES:
            raise UnknownNameError("variant", name, CASES)
    if size not in SIZES:
        raise UnknownNameError("size", size, SIZES)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda" and clock == "cpu":
        raise ConfigError("--clock cpu does not see a GPU's work", fix="use --clock wall")
    keep_freed_memory()
    load = make_load(tokens, max_length, where, getattr(torch, dtype), SIZES[size]["vocab_size"])
    found = [measure(name, size, load, rounds, clock) for name in progress(chosen, "variants")]
    Console().print(variants_table(found, f"{size}, 3 tasks, {load.tokens} tokens a batch"))
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
def search(
    names: Annotated[
        Optional[list[str]],  # noqa: UP045
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

    from scimult.benchmarks.search import SHAPES, measure_search
    from scimult.cli.tables import print_with_notes, search_table
    from scimult.errors import UnknownNameError
    from scimult.progress import progress

    chosen = names or list(SHAPES)
    for name in chosen:
        if name not in SHAPES:
            raise UnknownNameError("shape", name, SHAPES)
    found = [measure_search(name, width, k, fraction, clock) for name in progress(chosen, "shapes")]
    title = f"exact search, width {width}, best {k}, {clock} seconds"
    print_with_notes(search_table(found, title), [])
    report = {
        "benchmark": "search",
        "width": width,
        "k": k,
        "clock": clock,
        "rows": [row.as_json() for row in found],
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
