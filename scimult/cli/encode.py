"""``scimult encode``: papers, labels or queries to a folder of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.checks import check_use
from scimult.cli.common import Device, Dtype, Model, Pooling, Similarity, SkipBad, open_collection
from scimult.cli.output import echo
from scimult.files import check_replaceable


def encode(
    texts: Annotated[
        Path,
        typer.Argument(
            help="JSON lines or one JSON array (.gz) of papers, labels or queries, or their folder."
        ),
    ],
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    task: Annotated[str, typer.Option(help="Task that the embeddings are for.")],
    role: Annotated[
        Literal["query", "candidate"], typer.Option(help="Side of the task.")
    ] = "candidate",
    dtype: Dtype = "auto",
    device: Device = None,
    pooling: Pooling = None,
    similarity: Similarity = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an embedding folder.")] = False,
) -> None:
    """Embed papers, labels or queries: embeddings.npy, ids.txt and meta.json in a folder."""
    if not overwrite:
        check_replaceable(out)
    check_use(model, texts)
    from scimult.inference import SciMult
    from scimult.inference.embeddings import encode_into
    from scimult.retrieval.embeddings import EMBEDDINGS

    check_replaceable(out, EMBEDDINGS)
    encoder = SciMult.from_pretrained(
        model, device=device, dtype=dtype, pooling=pooling, similarity=similarity
    )
    collection = open_collection(texts, encoder.kind(task, role), skip_bad)
    encode_into(out, encoder, collection, task=task, role=role, overwrite=overwrite)
    echo(f"{out}: {len(collection):,} embeddings of width {encoder.width}, by {encoder.dtype}")
