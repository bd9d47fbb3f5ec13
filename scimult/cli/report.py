"""``scimult report``: results as a web page, tables for papers, and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_distinct, check_folder, named_values
from scimult.cli.output import echo, print_table
from scimult.errors import DataError, StorageError, one_of
from scimult.files import check_own_file

if TYPE_CHECKING:
    from scimult.retrieval.embeddings import StoredEmbeddings


def report(
    results: opt.Results,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, .md, .tex and .json.", show_default=False)
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of the scored data sets, for their texts (repeatable)."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="System to compare the others with. Default: the oldest result."),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="NAME=FOLDER: embeddings of a coarse set's papers to map (repeatable)."
        ),
    ] = None,
    layout: Annotated[
        Literal["tsne", "umap"], typer.Option(help="Layout of maps; umap needs the extra umap.")
    ] = "tsne",
    examples: Annotated[
        int, typer.Option(min=0, help="Won and lost queries to show per data set and system.")
    ] = 3,
    resamples: Annotated[
        int, typer.Option(min=100, help="Draws of the bootstrap and of the test.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    confidence: opt.Confidence = 0.95,
) -> None:
    """Report leaderboard, tests, curves, examples and costs as HTML, Markdown, LaTeX and JSON."""
    check_distinct(results)
    _check([*results, *(data or [])], map_ or [], out)
    from scimult.evaluation.reporting.maps import check_layout
    from scimult.evaluation.reporting.page import write_page
    from scimult.evaluation.reporting.parts import Options
    from scimult.evaluation.reporting.suite_report import make_suite_report
    from scimult.evaluation.results import require_results
    from scimult.progress import note

    check_layout(layout)
    options = Options(
        data=data or [],
        baseline=baseline,
        maps=_embeddings(map_ or []),
        layout=layout,
        examples=examples,
        resamples=resamples,
        seed=seed,
        confidence=confidence,
    )
    known = {result.system for folder in results for result in require_results(folder)}
    for name in options.maps:
        one_of("system of a map", name, known)
    suite_reports = [make_suite_report(folder, options, note) for folder in results]
    path = write_page(suite_reports, out)  # before the tables, whose reader (head) may leave
    for suite_report in suite_reports:
        for table in suite_report.tables:
            print_table(table)
        for gap in suite_report.missing:
            echo(f"not shown: {gap.section}: {gap.why}. Fix: {gap.fix}")
    echo(f"page in {path}; report.md, report.tex and report.json next to it")


def _check(folders: list[Path], maps: list[str], out: Path) -> None:
    """Check, before torch is loaded, that folders exist and no other files are replaced."""
    for folder in (*folders, *map(Path, _maps(maps).values())):
        if not folder.is_dir():
            raise DataError("folder does not exist", path=folder, fix="check the path")
    check_folder(out, "the report's files")
    check_own_file(out / "report.json", "a report", b'"scimult-report/')
    for name in ("report.html", "report.md", "report.tex"):
        if (out / name).exists() and not (out / "report.json").exists():
            fix = "choose another folder"
            raise StorageError("file is not part of a report", path=out / name, fix=fix)


def _embeddings(maps: list[str]) -> dict[str, StoredEmbeddings]:
    from scimult.retrieval.embeddings import read_embeddings

    return {name: read_embeddings(folder) for name, folder in _maps(maps).items()}


def _maps(specs: list[str]) -> dict[str, str]:
    return named_values(specs, "a map", "NAME=FOLDER", "mymodel=embeddings")
