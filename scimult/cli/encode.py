"""``scimult encode``: papers, labels or queries to a folder of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.common import Device, Model, Pooling, Similarity, SkipBad, open_collection
from scimult.errors import DataError


def encode(
    texts: Annotated[
        Path, typer.Argument(help="JSON lines (.gz) of papers, labels or queries, or their folder.")
    ],
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    task: Annotated[str, typer.Option(help="Task that the embeddings are for.")],
    role: Annotated[
        Literal["query", "candidate"], typer.Option(help="Side of the task.")
    ] = "candidate",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of the computation.")
    ] = "float32",
    device: Device = None,
    pooling: Pooling = None,
    similarity: Similarity = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an embedding folder.")] = False,
) -> None:
    """Embed papers, labels or queries: embeddings.npy, ids.txt and meta.json in a folder."""
    from scimult.inference import SciMult
    from scimult.inference.embeddings import encode_into
    from scimult.retrieval.embeddings import META_FILE

    if out.exists() and not (overwrite and (out / META_FILE).exists()):
        fix = "choose another folder, or --overwrite if it holds embeddings"
        raise DataError("output exists already", path=out, fix=fix)
    encoder = SciMult.from_pretrained(
        model, device=device, dtype=dtype, pooling=pooling, similarity=similarity
    )
    collection = open_collection(texts, encoder.kind(task, role), skip_bad)
    encode_into(out, encoder, collection, task=task, role=role)
    typer.echo(f"{out}: {len(collection):,} embeddings of width {encoder.width}")
