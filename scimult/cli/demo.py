"""``scimult generate`` and ``demo``: a generated world, and the whole workflow on it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.output import echo
from scimult.errors import ConfigError, SciMultError

# One thread per rank, as ranks compete for cores; no GPU, so that all machines agree.
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
CONFIGS = Path("configs")
LAUNCHER = Path("launch/pretrain.py")
# Stages of configs/demo/curriculum.yaml.
STAGES = ("untrained", "vanilla", "mha_expert")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path(
        "runs/demo"
    ),
    ranks: Annotated[int, typer.Option(min=1, help="Number of training processes.")] = 2,
) -> None:
    """Generate a world, pre-train vanilla, then experts under DeepSpeed, evaluate against BM25.

    Takes about five minutes on two cores. Run it in a checkout of the project; run it again
    to continue after an interruption.
    """
    for path in (LAUNCHER, CONFIGS / "demo"):
        if not path.exists():
            fix = "run it in a checkout, which has configs/ and launch/"
            raise ConfigError("the demo needs files of the project", path=path, fix=fix)
    from scimult.distributed import free_port

    environment = os.environ | ENVIRONMENT
    # Use this Python's `scimult` and `deepspeed`, even if its environment is not activated.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for name, value in ENVIRONMENT.items():
        typer.secho(f"$ export {name}={value}", bold=True)
    started = time.perf_counter()
    # DeepSpeed's default port may be held by another run.
    for command in commands(out, ranks, free_port()):
        _run(command, environment)
    minutes, seconds = divmod(round(time.perf_counter() - started), 60)
    typer.echo(f"done in {minutes} min {seconds} s; delete {out} to start from scratch")


def commands(out: Path, ranks: int, port: int) -> list[list[str]]:
    """Return the demo's commands, in order."""
    from scimult.config import string_override

    world, prepared, tokenizer = out / "world", out / "prepared", out / "tokenizer"
    launch = [*f"deepspeed --num_gpus {ranks} --master_port {port}".split(), f"{LAUNCHER}"]
    curriculum = ["--config", f"{CONFIGS}/demo/curriculum.yaml", "--stage", STAGES[-1]]
    folders = {"data.prepared": prepared, "model.tokenizer": tokenizer, "output": out}
    inputs = [string_override(key, str(folder)) for key, folder in folders.items()]
    raw = ["--config", f"{CONFIGS}/data/world.yaml", "--root", f"{world}/train"]
    vocabulary = ["--texts", f"{prepared}", "--vocab-size", "4000"]
    benchmarks = ["--suite", "demo", "--data", f"{world}/eval", "--out", f"{out}/results"]
    # bfloat16, the default where supported, would change scores in the second decimal.
    models = [f"{stage}={out / stage},dtype=float32" for stage in STAGES]
    models = [word for model in models for word in ("--model", model)]
    return [
        ["scimult", "generate", "--out", f"{world}"],
        ["scimult", "prepare", *raw, "--out", f"{prepared}"],
        ["scimult", "train-tokenizer", *vocabulary, "--out", f"{tokenizer}"],
        [*launch, *curriculum, *inputs],
        ["scimult", "evaluate", *benchmarks, "--bm25", *models, "--replace"],
    ]


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Print a command and run it."""
    line = shlex.join(command)
    typer.secho(f"\n$ {line}", bold=True)
    started = time.perf_counter()
    code = subprocess.run(command, env=environment, check=False).returncode
    if code != 0:
        fix = "read its last lines; run it by hand if you like, the demo continues from there"
        raise SciMultError(f"command failed with exit code {code}", value=line, fix=fix)
    typer.echo(f"({time.perf_counter() - started:.0f} s)")


def generate(
    out: opt.NewFolder,
    papers: Annotated[int, typer.Option(help="Number of papers, from 300 to 10,000,000.")] = 3000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Generate papers, citations, fields, queries and clicks, with evaluation sets held out.

    OUT/train is the input of scimult prepare, OUT/eval that of scimult evaluate.
    """
    from scimult.config import validate
    from scimult.files import check_replaceable
    from scimult.preparation.world import WorldSettings, make_world, write_world
    from scimult.preparation.world.layout import WORLD

    try:
        settings = validate(WorldSettings, {"papers": papers, "seed": seed})
    except ConfigError as error:
        problem = "; ".join(line.strip() for line in error.problem.splitlines()[1:])
        fix = "give 300 to 10,000,000 papers, and a seed of 0 or more"
        raise ConfigError(problem, fix=fix) from None
    check_replaceable(out, WORLD)
    records = write_world(make_world(settings), out)
    for name, count in records.items():
        echo(f"{count:>9,}  {out / name}")
