"""``scimult compare``, ``correlate`` and ``export-results``: analyses and exports of results."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_distinct, named_values, only_with
from scimult.cli.output import echo, print_table
from scimult.errors import ConfigError
from scimult.terminal import counted

RESAMPLES = 10_000
# Endings of the files written.
_FILES = (".csv", ".json")


def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Result folders of scimult evaluate; several suites are averaged, too.",
            show_default=False,
        ),
    ],
    baseline: Annotated[
        str,
        typer.Option(help="System or run to compare the others with.", show_default=False),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SYSTEM,SYSTEM or NAME=PATTERN-*: systems that differ only in their seed "
            "(repeatable). Gives mean ± sd over seeds and a test over queries and seeds."
        ),
    ] = None,
    systems: opt.Systems = None,
    metric: Annotated[
        Literal["main", "all"], typer.Option(help="Main metric of each set, or all metrics.")
    ] = "main",
    resamples: Annotated[
        int | None,
        typer.Option(min=100, help="Draws of the bootstrap and of the test. Default: 10,000."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws. Default: 0.")] = None,
    confidence: opt.Confidence = 0.95,
) -> None:
    """Compare systems with a baseline: intervals and corrected tests, as JSON and Markdown."""
    check_distinct(results)
    if runs or len(results) > 1:
        if metric == "all" or resamples is not None or seed is not None:
            fix = "leave out --metric all, --resamples and --seed, or --runs and further folders"
            raise ConfigError("several seeds or suites are compared without draws", fix=fix)
        _compare_runs(results, _patterns(runs or []), baseline, systems or [], confidence)
        return
    from scimult.evaluation.comparison import Settings, save_comparison
    from scimult.evaluation.comparison import compare as compare_systems
    from scimult.evaluation.reporting.leaderboard import differences
    from scimult.files import write_text
    from scimult.table import to_markdown

    settings = Settings(
        baseline=baseline,
        metric=metric,
        resamples=resamples or RESAMPLES,
        seed=seed or 0,
        confidence=confidence,
    )
    comparison = compare_systems(results[0], settings, systems or [])
    path = save_comparison(comparison, results[0])
    table = differences(comparison)
    write_text(path.with_suffix(".md"), to_markdown(table, level=1))
    print_table(table)
    typer.echo(f"table in {path.with_suffix('.md')}, full precision in {path}")


def _patterns(specs: list[str]) -> dict[str, list[str]]:
    example = "experts=experts-0,experts-1 or 'experts=experts-*'"
    runs = named_values(
        specs, "a run", "NAME=SYSTEM,SYSTEM", example, lambda members: all(members.split(","))
    )
    for name in runs:
        if "/" in name:
            fix = "leave it out: the name goes into file names"
            raise ConfigError("a run's name has a slash", value=name, fix=fix)
    return {name: members.split(",") for name, members in runs.items()}


def _compare_runs(
    folders: list[Path],
    patterns: dict[str, list[str]],
    baseline: str,
    systems: list[str],
    confidence: float,
) -> None:
    from scimult.evaluation.repeated import compare_runs
    from scimult.evaluation.reporting.repeated import tables_of, to_csv
    from scimult.evaluation.results import provenance
    from scimult.files import write_json, write_text
    from scimult.table import to_latex, to_markdown

    suites = compare_runs(folders, patterns, baseline, systems, confidence)
    tables = [table for one in suites for table in tables_of(one)]
    path = folders[0] / f"runs_{baseline}.json"
    record = {"format": "scimult-runs/1", "suites": [asdict(one) for one in suites]}
    write_json(path, {**record, "provenance": provenance()})
    write_text(path.with_suffix(".md"), "\n".join(to_markdown(table) for table in tables))
    write_text(path.with_suffix(".tex"), "\n".join(map(to_latex, tables)))
    write_text(path.with_suffix(".csv"), to_csv(suites))
    for table in tables:
        print_table(table)
    typer.echo(f"tables in {path.with_suffix('.md')}, .tex and .csv, full precision in {path}")


def correlate(
    results: Annotated[
        Path, typer.Argument(help="Result folder of scimult evaluate.", show_default=False)
    ],
    method: Annotated[
        Literal["pearson", "spearman", "kendall"], typer.Option(help="Method to print.")
    ] = "pearson",
) -> None:
    """Correlate data sets over systems; write all methods as JSON and Markdown."""
    from scimult.evaluation.correlation import METHODS, correlation_table
    from scimult.evaluation.correlation import correlate as correlate_sets
    from scimult.files import write_json, write_text
    from scimult.table import to_markdown

    correlation = correlate_sets(results)
    write_json(results / "correlation.json", correlation.model_dump(mode="json"))
    pages = [to_markdown(correlation_table(correlation, name), level=1) for name in METHODS]
    write_text(results / "correlation.md", "\n".join(pages))
    print_table(correlation_table(correlation, method))
    echo(f"all methods in {results / 'correlation.md'}, full precision in correlation.json")


def export_results(
    results: opt.Results,
    to: Annotated[
        Literal["csv", "mteb", "beir"],
        typer.Option(
            help="csv: all scores; mteb: MTEB's result files; beir: ranked lists as JSON, query "
            "to document to score (also the format of PMC-Patients)."
        ),
    ],
    out: opt.NewFolder,
    systems: Annotated[
        list[str] | None, typer.Option(help="Only this system (repeatable).")
    ] = None,
    sets: opt.Sets = None,
    names: Annotated[
        list[str] | None,
        typer.Option(help="SET=NAME: MTEB's name of a set (repeatable). Default: the same."),
    ] = None,
) -> None:
    """Export results as CSV, as MTEB's result files, or as runs for BEIR and PMC-Patients."""
    from scimult.evaluation import exports

    check_distinct(results)
    if out.suffix.lower() in _FILES and not out.exists():
        fix = f"name a folder, such as {out.with_suffix('')}"
        raise ConfigError("--out is a folder, into which files go", value=str(out), fix=fix)
    if to != "mteb":
        only_with("--to mteb", {"--names": names})
    form, example = "SET=NAME, letters, digits, . _ + -", "scifact=SciFact"
    fits = re.compile(r"\w[\w.+-]*").fullmatch
    mteb_names = named_values(names or [], "a name", form, example, fits)
    written = exports.export_results(
        results, to, out, systems=systems or [], sets=sets or [], names=mteb_names
    )
    echo(f"{counted(len(written), 'file')} in {out}")
