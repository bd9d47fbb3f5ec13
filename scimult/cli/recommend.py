"""``scimult recommend``: papers that a paper could cite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli.common import (
    AsJson,
    Device,
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
    show_list,
)
from scimult.errors import DataError

if TYPE_CHECKING:
    from scimult.inference.collection import Collection
    from scimult.types import Text


def recommend(
    model: Model,
    papers: Papers,
    paper: Annotated[
        str | None, typer.Option("--id", help="Id of one of the papers.", show_default=False)
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="Title of one of the papers, or of a new one.", show_default=False),
    ] = None,
    abstract: Annotated[str, typer.Option(help="Abstract of a new paper.")] = "",
    top: Top = 10,
    task: Annotated[str, typer.Option(help="Task of the model.")] = "link_prediction",
    device: Device = None,
    pooling: Pooling = None,
    similarity: Similarity = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Rank papers by how likely a paper cites them; the paper itself is left out."""
    if (paper is None) == (title is None):
        raise DataError("which paper?", fix="give either --id or --title")
    encoder = open_model(model, device, pooling, similarity)
    collection = open_collection(papers, encoder.kind(task, "candidate"), skip_bad)
    text, own_row = _query(collection, paper, title, abstract)
    query_1D = encoder.encode([text], task=task, role="query")
    papers_ND = embed(encoder, collection, task, "candidate", no_cache)
    (rows,) = ranked(encoder, collection, papers_ND, query_1D, top, own_row)
    show_list(rows, text.title, as_json)


def _query(
    collection: Collection, paper: str | None, title: str | None, abstract: str
) -> tuple[Text, int]:
    """Return the query paper and its row in the collection (-1 for a new paper)."""
    from scimult.types import Text

    if paper is not None:
        row = collection.row(paper)
        return collection.texts[row], row
    assert title is not None
    rows = [] if abstract else collection.titled(title)
    if len(rows) > 1:
        ids = [collection.ids[row] for row in rows]
        fix = "name one of these ids with --id"
        raise DataError("several papers have this title", path=collection.path, value=ids, fix=fix)
    if rows:
        return collection.texts[rows[0]], rows[0]
    return Text("paper", title, abstract), -1
