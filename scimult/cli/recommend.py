"""``scimult recommend``: papers that a paper could cite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_use, not_with, real_text
from scimult.cli.common import embed, open_model, open_searched, ranked, show_ranked
from scimult.cli.in_library import ELSEWHERE, check_paper_source, show_answer
from scimult.cli.output import echo
from scimult.errors import DataError, suggest

if TYPE_CHECKING:
    from scimult.inference.collection import Collection
    from scimult.types import Text


def recommend(
    library: opt.InLibrary = None,
    server: opt.Server = None,
    model: opt.AnyModel = None,
    papers: opt.AnyPapers = None,
    paper: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            help="Id of one of the papers (repeatable with --library).",
            show_default=False,
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(
            callback=real_text,
            help="Title of one of the papers, or of a new one.",
            show_default=False,
        ),
    ] = None,
    abstract: Annotated[
        str,
        typer.Option(callback=real_text, help="Abstract of a new paper."),
    ] = "",
    top: opt.Top = 10,
    task: opt.Task = "link_prediction",
    where: opt.Where = None,
    min_score: opt.MinScore = None,
    offset: opt.Offset = 0,
    exclude: opt.Exclude = None,
    percentile: opt.Percentile = False,
    exact: opt.Exact = False,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    no_cache: opt.NoCache = False,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Rank papers by how likely a given paper cites them; the paper itself is left out."""
    for name in paper or ():
        real_text(name)
    new = bool((title or "").strip() or abstract.strip())
    if bool(paper) == new:
        problem = "--id excludes --title and --abstract" if new else "no paper given"
        fix = "give --id, or --title of a paper, or --title and --abstract of a new one"
        raise DataError(problem, fix=fix)
    of_library = {
        "--where": where,
        "--min-score": min_score,
        "--offset": offset,
        "--exclude": exclude,
        "--percentile": percentile,
        "--exact": exact,
        "a second --id": len(paper or ()) > 1,
    }
    of_papers: dict[str, object] = {"--dtype": dtype != "auto", "--no-cache": no_cache}
    of_papers |= {"--pooling": pooling, "--similarity": similarity, "--skip-bad": skip_bad}
    heading = title or ", ".join(paper or ["a new paper"])
    question = {
        "ids": paper,
        "title": title,
        "abstract": abstract,
        "task": task,
        "k": None if min_score is not None else top,
        "offset": offset,
        "min_score": min_score,
        "where": where,
        "exclude": exclude,
        "percentile": percentile,
        "method": "exact" if exact else "auto",
    }
    if server is not None:
        elsewhere: dict[str, object] = {"--library": library, "--model": model, "--papers": papers}
        elsewhere |= {"--where": where, "--device": device}
        not_with("--server", {**elsewhere, **of_papers}, ELSEWHERE)
        show_answer("recommend", question, server, heading, as_json)
        return
    check_paper_source(library, model, papers, of_library, of_papers)
    if library is not None:
        opening = {"path": library, "model": model, "device": device, "light": device is None}
        show_answer("recommend", question, opening, heading, as_json)
        return
    assert model is not None
    assert papers is not None
    check_use(model, papers)
    encoder = open_model(model, device, dtype, pooling, similarity)
    collection = open_searched(encoder, task, papers, skip_bad)
    own = paper[0] if paper else None
    text, own_row = _query(collection, own, title or "", abstract)
    query_1D = encoder.encode([text], task=task, role="query")
    papers_ND = embed(encoder, collection, task, "candidate", no_cache)
    (rows,) = ranked(encoder, collection, papers_ND, query_1D, top, own_row)
    show_ranked(rows, text.title or own or "a new paper", encoder.similarity, as_json)


def _query(
    collection: Collection, paper: str | None, title: str, abstract: str
) -> tuple[Text, int]:
    """Return the query paper and its row in the collection (-1 for a new paper)."""
    from scimult.types import Text

    if paper is not None:
        row = collection.row(paper)
        return collection.texts[row], row
    rows = [] if abstract.strip() else collection.titled(title)
    if len(rows) > 1:
        ids = [collection.ids[row] for row in rows]
        fix = "choose one of these ids with --id"
        raise DataError("several papers have this title", path=collection.path, value=ids, fix=fix)
    if rows:
        return collection.texts[rows[0]], rows[0]
    if not abstract.strip():
        near = suggest(title, [known.title for known in collection.texts])
        echo(f"no paper has this title; it is used as a new one without abstract{near}", err=True)
    return Text("paper", title.strip(), abstract.strip()), -1
