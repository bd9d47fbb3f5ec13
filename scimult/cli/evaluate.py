"""``scimult evaluate``: score encoders, stored embeddings and BM25 on a suite of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import typer

from scimult.cli.common import Device, SkipBad
from scimult.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from scimult.evaluation.report import Report
    from scimult.evaluation.results import SetResult
    from scimult.evaluation.systems import System
    from scimult.types import Similarity

SIMILARITIES = ("dot", "cosine", "l2")
STORED_OPTIONS = {"similarity": SIMILARITIES}
MODEL_OPTIONS = {
    "pooling": ("cls", "mean"),
    "similarity": SIMILARITIES,
    "dtype": ("float32", "bfloat16", "float16"),
    "combine": ("mean", "concatenation"),
}


def evaluate(
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Argument(help="Changes to the suite: benchmarks.NAME.key=value.", show_default=False),
    ] = None,
    suite: Annotated[str, typer.Option(help="Name of a suite, or a YAML file.")] = "first",
    data: Annotated[Path, typer.Option(help="Folder that holds the suite's data sets.")] = Path(
        "."
    ),
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the results; its table shows every system in it."),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            help="NAME=FOLDER[,pooling=mean][,similarity=cosine][,dtype=bfloat16]; "
            "NAME=FOLDER+FOLDER[,combine=concatenation] averages the embeddings of two models, or "
            "joins them."
        ),
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

    if not distributed.is_main():
        return
    if show_list:
        _show_suites(suite, data)
        return
    if out is None:
        raise ConfigError("no folder for the results", fix="pass --out DIR")
    from scimult.evaluation.harness import evaluate as score
    from scimult.evaluation.harness import load_sets
    from scimult.evaluation.report import check_comparable, update_table
    from scimult.evaluation.results import folder_of, load_results
    from scimult.evaluation.suites import load_suite

    makers = _systems(bm25, embeddings or [], model or [], device)
    chosen = load_suite(suite, overrides or [])
    loaded = load_sets(chosen, data, sets or [], skip_bad=skip_bad)
    others = [result for result in load_results(out) if result.system not in makers]
    check_comparable(others, chosen.name, {name: entry.facts for name, entry in loaded.items()})
    for name in makers:
        folder_of(out, name)
    for name, make in makers.items():
        score(make(), chosen, loaded, out, save_runs=save_runs, on_set=partial(_tell, name))
    _show_report(update_table(out))
    typer.echo(f"table in {out / 'table.md'}, scores and provenance beside it")


def _tell(system: str, name: str, result: SetResult) -> None:
    score = 100 * result.scores[result.main_metric]
    line = f"{result.main_metric} {score:.2f} ({result.seconds:.1f} s)"
    typer.echo(f"{system}: {name}: {line}", err=True)


def _show_report(report: Report) -> None:
    from rich.console import Console

    from scimult.evaluation.report import to_rich

    console = Console()
    (console if console.is_terminal else Console(width=200)).print(to_rich(report))
    for note in report.notes:
        typer.echo(note)


def _systems(
    bm25: bool, stored: Sequence[str], models: Sequence[str], device: str | None
) -> dict[str, Callable[[], System]]:
    """Return a function per system that makes it, so that one model is in memory at a time."""
    makers: dict[str, Callable[[], System]] = {}
    if bm25:
        from scimult.evaluation.systems import BM25System

        makers[BM25System.name] = BM25System
    for spec in stored:
        chosen = parse_system(spec, STORED_OPTIONS)
        _add(makers, chosen.name, partial(_stored, chosen, device))
    for spec in models:
        chosen = parse_system(spec, MODEL_OPTIONS)
        _add(makers, chosen.name, partial(_model, chosen, device))
    if not makers:
        raise ConfigError("nothing to evaluate", fix="pass --model, --embeddings or --bm25")
    return makers


@dataclass(frozen=True)
class SystemSpec:
    """``NAME=FOLDER,key=value``, taken apart."""

    name: str
    folder: Path
    options: dict[str, str]


def parse_system(spec: str, allowed: Mapping[str, Collection[str]]) -> SystemSpec:
    """Parse ``NAME=FOLDER[,key=value]...``.

    Raises
    ------
    ConfigError
        If the text has another form.
    UnknownNameError
        If an option or its value is unknown.
    """
    first, *rest = spec.split(",")
    name, separator, folder = first.partition("=")
    if not (name and separator and folder):
        raise ConfigError("a system is NAME=FOLDER", value=spec, fix="write mymodel=runs/mymodel")
    options = {}
    for item in rest:
        key, _, value = item.partition("=")
        if key not in allowed:
            raise UnknownNameError("option of a system", key, allowed)
        if value not in allowed[key]:
            raise UnknownNameError(key, value, allowed[key])
        options[key] = value
    return SystemSpec(name, Path(folder), options)


def _add(makers: dict[str, Callable[[], System]], name: str, make: Callable[[], System]) -> None:
    if name in makers:
        raise ConfigError("two systems have the same name", value=name, fix="rename one")
    makers[name] = make


def _stored(spec: SystemSpec, device: str | None) -> System:
    from scimult.evaluation.systems import StoredSystem

    similarity = cast("Similarity", spec.options.get("similarity", "dot"))
    return StoredSystem(spec.name, spec.folder, similarity, device=device or "cpu")


def _model(spec: SystemSpec, device: str | None) -> System:
    from scimult.evaluation.systems import DenseSystem
    from scimult.inference import Ensemble, SciMult

    options: dict[str, Any] = dict(spec.options)
    combine, folders = options.pop("combine", "mean"), _folders(spec.folder)
    if "combine" in spec.options and len(folders) == 1:
        raise ConfigError(
            "combine is for several models", value=spec.name, fix="name them as FOLDER+FOLDER"
        )
    members = [
        SciMult.from_pretrained(folder, name=spec.name, device=device, **options)
        for folder in folders
    ]
    encoder = (
        members[0] if len(members) == 1 else Ensemble(members, name=spec.name, combine=combine)
    )
    settings = {
        "folder": str(spec.folder),
        "fingerprint": "+".join(member.fingerprint for member in members),
        **spec.options,
    }
    return DenseSystem(encoder, settings, device=device or "cpu", show_progress=True)


def _folders(spec: Path) -> list[Path]:
    """Return the folders of an ensemble, ``A+B``; a folder that exists is one of its own."""
    return [spec] if spec.exists() else [Path(part) for part in str(spec).split("+")]


def _show_suites(chosen: str, data: Path) -> None:
    """Print every suite: its sets, how they are scored, their origin, whether they are here."""
    from scimult.evaluation.datasets import missing_files
    from scimult.evaluation.suites import load_suite, suite_names

    for name in dict.fromkeys([*suite_names(), chosen]):
        suite = load_suite(name)
        typer.echo(f"{suite.name}: {suite.description}")
        typer.echo(f"  data: {suite.how_to_get}")
        for key, entry in suite.benchmarks.items():
            here = "missing" if missing_files(entry, data) else "here"
            typer.echo(f"  {key} [{here}]: {entry.task}, {entry.protocol}")
            typer.echo(f"    {', '.join(entry.metrics)}; {entry.source}; {entry.licence}")
