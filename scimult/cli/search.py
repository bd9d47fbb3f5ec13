"""``scimult search``: rank papers for a query in words."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_use, not_with, only_with, real_text
from scimult.cli.common import embed, open_model, open_searched, ranked, show_ranked
from scimult.cli.in_library import ELSEWHERE, check_paper_source, show_answer
from scimult.errors import ConfigError


def search(
    query: Annotated[str, typer.Argument(callback=real_text, help="Query in words.")],
    library: opt.InLibrary = None,
    server: opt.Server = None,
    model: opt.AnyModel = None,
    papers: opt.AnyPapers = None,
    top: opt.Top = 10,
    task: opt.Task = "search",
    where: opt.Where = None,
    min_score: opt.MinScore = None,
    offset: opt.Offset = 0,
    exclude: opt.Exclude = None,
    words: Annotated[
        str | None,
        typer.Option(
            help="With --library or --server: share of BM25 in the score, such as 0.3; rank: fuse "
            "by ranks; tuned: the share from scimult library tune."
        ),
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(help="With --library: cross-encoder to rerank the first results."),
    ] = None,
    rerank_top: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --rerank: how many, by default 100; further pages are refused."
        ),
    ] = None,
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
    """Rank papers of a library, a service or a file (encoded once, then cached) for a query."""
    of_library = {
        "--where": where,
        "--min-score": min_score,
        "--offset": offset,
        "--exclude": exclude,
        "--words": words,
        "--rerank": rerank,
        "--percentile": percentile,
        "--exact": exact,
    }
    if rerank is None:
        only_with("--rerank", {"--rerank-top": rerank_top})
    of_papers: dict[str, object] = {"--dtype": dtype != "auto", "--no-cache": no_cache}
    of_papers |= {"--pooling": pooling, "--similarity": similarity, "--skip-bad": skip_bad}
    question = {
        "text": query,
        "task": task,
        "k": None if min_score is not None else top,
        "offset": offset,
        "min_score": min_score,
        "where": where,
        "exclude": exclude,
        "words": _share(words),
        "rerank": rerank,
        "rerank_top": rerank_top,
        "percentile": percentile,
        "method": "exact" if exact else "auto",
    }
    if server is not None:
        elsewhere: dict[str, object] = {"--library": library, "--model": model, "--papers": papers}
        elsewhere |= {"--where": where, "--rerank": rerank, "--device": device}
        not_with("--server", {**elsewhere, **of_papers}, ELSEWHERE)
        show_answer("search", question, server, query, as_json)
        return
    check_paper_source(library, model, papers, of_library, of_papers)
    if library is not None:
        # A cross-encoder and a device need torch in any case.
        light = device is None and rerank is None
        opening = {"path": library, "model": model, "device": device, "light": light}
        show_answer("search", question, opening, query, as_json)
        return
    assert model is not None
    assert papers is not None
    check_use(model, papers)
    encoder = open_model(model, device, dtype, pooling, similarity)
    collection = open_searched(encoder, task, papers, skip_bad)
    query_1D = encoder.encode([query], task=task, role="query")
    papers_ND = embed(encoder, collection, task, "candidate", no_cache)
    (rows,) = ranked(encoder, collection, papers_ND, query_1D, top)
    show_ranked(rows, query, encoder.similarity, as_json)


def _share(words: str | None) -> float | Literal["rank", "tuned"] | None:
    if words is None:
        return None
    if words == "rank":
        return "rank"
    if words == "tuned":
        return "tuned"
    try:
        return float(words)
    except ValueError:
        fix = "give a number from 0 to 1, rank, or tuned"
        raise ConfigError("not a share of BM25", value=words, fix=fix) from None
