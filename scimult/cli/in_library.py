"""What ``search``, ``recommend`` and ``tag`` share over a library: their options and answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scimult.cli.common import show_list
from scimult.cli.output import echo
from scimult.errors import ConfigError

if TYPE_CHECKING:
    from scimult.library import Hits

InLibrary = Annotated[
    Path | None,
    typer.Option("--library", help="A library (scimult library create), in place of --papers."),
]
AnyModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="A run, a saved model, a Hugging Face or sentence-transformers folder, or a name on "
        "the hub; a library knows its own.",
        show_default=False,
    ),
]
AnyPapers = Annotated[
    Path | None,
    typer.Option(
        "--papers",
        help="JSON lines or one JSON array (.gz) with id, title and abstract, or a folder with "
        "papers.jsonl.",
        show_default=False,
    ),
]
Where = Annotated[
    str | None,
    typer.Option(help='With --library: a condition in SQL on its columns, "year >= 2020".'),
]
MinScore = Annotated[
    float | None,
    typer.Option(help="With --library: everything with this score or more, not the --top."),
]
Offset = Annotated[
    int, typer.Option(min=0, help="With --library: results to pass over, for the next page.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="With --library: id of a paper to leave out. Repeat it for several."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="With --library: leave its approximate index aside.")
]
Percentile = Annotated[
    bool,
    typer.Option("--percentile", help="With --library: how much of it scores lower, in per cent."),
]


def where_papers_are(
    library: Path | None,
    model: Path | None,
    papers: Path | None,
    only_library: Mapping[str, Any],
    only_papers: Mapping[str, Any],
) -> None:
    """Check that a verb is told either a library, or a model and papers.

    Parameters
    ----------
    library, model, papers : path, optional
        As they were given.
    only_library, only_papers : mapping
        Options of one of the two, by name; those that were not given are None or false.

    Raises
    ------
    ConfigError
        If it is told neither, or both.
    """
    if library is None and (model is None or papers is None):
        missing = "--model" if model is None else "--papers"
        fix = "give --library, or --model and --papers"
        raise ConfigError(f"{missing} is missing", fix=fix)
    if library is not None and papers is not None:
        fix = "leave one of them out; scimult library add takes papers in"
        raise ConfigError("--library and --papers cannot both be searched", fix=fix)
    wrong = only_library if library is None else only_papers
    used = [name for name, value in wrong.items() if value not in (None, False, 0, [], ())]
    if used:
        other = "--library" if library is None else "--papers"
        raise ConfigError(f"{used[0]} goes with {other}", fix=f"leave out {', '.join(used)}")


def show_hits(hits: Hits, title: str, as_json: bool) -> None:
    """Print what a library found: JSON lines, or a table that says what scores are."""
    show_rows(hits.as_dicts(), hits.score, hits.exact, title, as_json)


def show_rows(
    rows: list[dict[str, Any]], score: str, exact: bool, title: str, as_json: bool
) -> None:
    """Print papers of a library, wherever it was opened."""
    if not rows:
        echo("no paper of the library fits", err=True)
    if not as_json:
        how = "" if exact else ", approximate"
        heading = f"score ({score}{how})"
        rows = [
            {
                heading if name == "score" else name: value
                for name, value in row.items()
                if name in ("rank", "score", "percentile", "id", "title", "year")
            }
            for row in rows
        ]
    show_list(rows, title, as_json)
