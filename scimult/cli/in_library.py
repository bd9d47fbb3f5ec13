"""What ``search``, ``recommend`` and ``tag`` share over a library: checks and answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from scimult.cli.at_server import ask, rows_of
from scimult.cli.checks import only_with
from scimult.cli.common import show_list
from scimult.cli.output import echo
from scimult.errors import ConfigError


def where_papers_are(
    library: Path | None,
    model: Path | None,
    papers: Path | None,
    only_library: Mapping[str, object],
    only_papers: Mapping[str, object],
) -> None:
    """Check that a verb is told either a library, or a model and papers.

    Parameters
    ----------
    library, model, papers : path, optional
        As they were given.
    only_library, only_papers : mapping
        Options of one of the two, as of :func:`scimult.cli.checks.only_with`.

    Raises
    ------
    ConfigError
        If it is told neither, or both, or an option of the other one.
    """
    if library is None and (model is None or papers is None):
        missing = "--model" if model is None else "--papers"
        fix = "give --library, or --model and --papers"
        raise ConfigError(f"{missing} is missing", fix=fix)
    if library is not None and papers is not None:
        fix = "leave one of them out; scimult library add takes papers in"
        raise ConfigError("--library and --papers cannot both be searched", fix=fix)
    if library is None:
        only_with("--library", only_library)
    else:
        only_with("--papers", only_papers)


def show_answer(
    verb: Literal["search", "recommend"],
    question: Mapping[str, Any],
    where: str | Mapping[str, Any],
    title: str,
    as_json: bool,
) -> None:
    """Put a question to a service or to a library that is opened here, and print the papers.

    Parameters
    ----------
    verb : {"search", "recommend"}
        What is asked: a path of the service, a method of the library.
    question : mapping
        Its fields, which both know by the same names; those that are None are left out.
    where : str or mapping
        The service's address, or what opens the library.
    title, as_json
        How the papers are shown.
    """
    asked = {name: value for name, value in question.items() if value is not None}
    if isinstance(where, str):
        answer = ask(where, verb, asked)
        show_rows(rows_of(answer), answer["score"], answer["exact"], title, as_json)
        return
    from scimult.library import Library

    hits = getattr(Library.open(**where), verb)(**asked)
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
