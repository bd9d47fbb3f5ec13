"""``scimult evaluate``: score encoders, stored embeddings and BM25 on a suite of benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scimult.cli.common import Device, SkipBad
from scimult.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from scimult.evaluation.systems import System

MODEL_OPTIONS = ("pooling", "similarity", "dtype")
STORED_OPTIONS = ("similarity",)


def evaluate(
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Argument(
            help="Changes to the suite: benchmarks.NAME.key=value.", show_default=False
        ),
    ] = None,
    suite: Annotated[str, typer.Option(help="Name of a suite, or a YAML file.")] = "first",
    data: Annotated[
        Path, typer.Option(help="Folder that holds the suite's data sets.")
    ] = Path("."),
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the results; its table shows every system in it."),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="NAME=FOLDER[,pooling=mean][,similarity=cosine][,dtype=bfloat16]"),
    ] = None,
    embeddings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="NAME=FOLDER[,similarity=dot] of stored embeddings."),
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Score BM25 too.")] = False,
    sets: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Only this data set (repeatable)."),
    ] = None,
    save_runs: Annotated[
        bool, typer.Option("--save-runs", help="Write ranked lists as TREC runs.")
    ] = False,
    device: Device = None,
    skip_bad: SkipBad = False,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show the suites and whether their data is in --data.")
    ] = False,
) -> None:
    """Score systems on a suite; print a table and write JSON, Markdown and per-query scores.

    Under a launcher with several processes the first one does the work.
    """
    from scimult import distributed
    from scimult.evaluation.suites import load_suite, suite_names

    if not distributed.is_main():
        return
    if show_list:
        for name in dict.fromkeys([*suite_names(), suite]):
            _show_suite(name, data)
        return
    if out is None:
        raise ConfigError("no folder for the results", fix="pass --out DIR")
    if not (model or embeddings or bm25):
        raise ConfigError("nothing to evaluate", fix="pass --model, --embeddings or --bm25")
    from scimult.evaluation.harness import Evaluation

    evaluation = Evaluation(
        load_suite(suite, overrides or []), data, out, sets or [], skip_bad=skip_bad
    )
    names = [parse_system(spec, MODEL_OPTIONS) for spec in model or []]
    stored = [parse_system(spec, STORED_OPTIONS) for spec in embeddings or []]
    if bm25:
        pass
