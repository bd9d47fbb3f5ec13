"""``scimult search``: papers for a query in words."""

from __future__ import annotations

from typing import Annotated

import typer

from scimult.cli.checks import check_use, real_text
from scimult.cli.common import (
    AsJson,
    Device,
    Dtype,
    Model,
    NoCache,
    Papers,
    Pooling,
    Similarity,
    SkipBad,
    Top,
    embed,
    open_collection,
    open_model,
    ranked,
    show_ranked,
)


def search(
    query: Annotated[str, typer.Argument(callback=real_text, help="What to look for, in words.")],
    model: Model,
    papers: Papers,
    top: Top = 10,
    task: Annotated[str, typer.Option(help="Task of the model.")] = "search",
    device: Device = None,
    dtype: Dtype = "auto",
    pooling: Pooling = None,
    similarity: Similarity = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Rank papers for a query; the papers are encoded once and kept in a cache."""
    check_use(model, papers)
    encoder = open_model(model, device, dtype, pooling, similarity)
    collection = open_collection(papers, encoder.kind(task, "candidate"), skip_bad)
    query_1D = encoder.encode([query], task=task, role="query")
    papers_ND = embed(encoder, collection, task, "candidate", no_cache)
    (rows,) = ranked(encoder, collection, papers_ND, query_1D, top)
    show_ranked(rows, query, encoder.similarity, as_json)
