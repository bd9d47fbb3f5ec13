"""Checks and answers that ``search``, ``recommend`` and ``tag`` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from scimult.cli.at_server import ask, rows_of
from scimult.cli.checks import only_with
from scimult.cli.common import show_list
from scimult.cli.output import echo
from scimult.errors import ConfigError


def check_paper_source(
    library: Path | None,
    model: Path | None,
    papers: Path | None,
    only_library: Mapping[str, object],
    only_papers: Mapping[str, object],
) -> None:
    """Check that a verb was given either a library, or a model and papers.

    Parameters
    ----------
    library, model, papers : path, optional
        As given.
    only_library, only_papers : mapping
        Options that are valid for one of the two, as for `scimult.cli.checks.only_with`.

    Raises
    ------
    ConfigError
        If neither or both were given, or an option of the other one.
    """
    if library is None and (model is None or papers is None):
        missing = "--model" if model is None else "--papers"
        fix = "give --library, or --model and --papers"
        raise ConfigError(f"{missing} is missing", fix=fix)
    if library is not None and papers is not None:
        fix = "leave one of them out; scimult library add adds papers to a library"
        raise ConfigError("--library and --papers are mutually exclusive", fix=fix)
    if library is None:
        only_with("--library", only_library)
    else:
        only_with("--papers", only_papers)


def show_answer(
    verb: Literal["search", "recommend"],
    question: Mapping[str, Any],
    target: str | Mapping[str, Any],
    title: str,
    as_json: bool,
) -> None:
    """Send a question to a service or to a local library, and print the papers.

    Parameters
    ----------
    verb : {"search", "recommend"}
        Path at the service, method of the library.
    question : mapping
        Its fields, named alike in both; those that are None are left out.
    target : str or mapping
        Address of the service, or arguments to open the library.
    title, as_json
        How to show the papers.
    """
    fields = {name: value for name, value in question.items() if value is not None}
    if isinstance(target, str):
        answer = ask(target, verb, fields)
        _show_rows(rows_of(answer), answer["score"], answer["exact"], title, as_json)
        return
    from scimult.library import Library

    hits = getattr(Library.open(**target), verb)(**fields)
    _show_rows(hits.as_dicts(), hits.score, hits.exact, title, as_json)


def _show_rows(
    rows: list[dict[str, Any]], score: str, exact: bool, title: str, as_json: bool
) -> None:
    if not rows:
        echo("no paper of the library matches", err=True)
    if not as_json:
        suffix = "" if exact else ", approximate"
        heading = f"score ({score}{suffix})"
        rows = [
            {
                heading if name == "score" else name: value
                for name, value in row.items()
                if name in ("rank", "score", "percentile", "id", "title", "year")
            }
            for row in rows
        ]
    show_list(rows, title, as_json)
