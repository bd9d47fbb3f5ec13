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
    task: Annotated[
        str,
        typer.Option(
            help="Task that the embeddings are for; all: papers for every task in one pass of the "
            "blocks they share, a folder for each."
        ),
    ],
    role: Annotated[
        Literal["query", "candidate"],
        typer.Option(help="Side of the task; under all where it has papers on both."),
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
    from scimult.inference.embeddings import encode_for_all_into, encode_into
    from scimult.retrieval.embeddings import EMBEDDINGS, EMBEDDINGS_BY_TASK
    from scimult.tasks import ALL

    check_replaceable(out, EMBEDDINGS_BY_TASK if task == ALL else EMBEDDINGS)
    encoder = SciMult.from_pretrained(
        model, device=device, dtype=dtype, pooling=pooling, similarity=similarity
    )
    if task == ALL:
        papers = open_collection(texts, "paper", skip_bad)
        tasks = encode_for_all_into(out, encoder, papers, role=role, overwrite=overwrite)
        many, where = len(papers), f"{out}/{{{','.join(tasks)}}}"
    else:
        collection = open_collection(texts, encoder.kind(task, role), skip_bad)
        encode_into(out, encoder, collection, task=task, role=role, overwrite=overwrite)
        many, where = len(collection), str(out)
    echo(f"{where}: {many:,} embeddings of width {encoder.width}, by {encoder.dtype}")
