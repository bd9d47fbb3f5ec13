"""``scimult encode``: papers, labels or queries to shards of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_inputs, check_model, named_values
from scimult.cli.common import rejecting
from scimult.cli.output import echo
from scimult.errors import ConfigError, StorageError
from scimult.files import check_replaceable

MANIFEST = "manifest.json"


def encode(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Papers: JSON lines or one JSON array, CSV, TSV, Parquet, BibTeX, RIS, dumps of "
            "OpenAlex and others (.gz; patterns such as 'works/*.gz'), or a folder. Labels or "
            "queries: JSON lines, or their folder."
        ),
    ],
    model: opt.Model,
    out: Annotated[
        Path,
        typer.Option(help="Folder of shards to write, or to go on with.", show_default=False),
    ],
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
    part: Annotated[
        str | None,
        typer.Option(
            help="Encode only shards I, I+N, I+2N, ...: as I/N, from 0/N. Ranks of torchrun and "
            "deepspeed divide the work by themselves.",
            show_default=False,
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Encode papers by so many actors of Ray Data, on the cluster that $RAY_ADDRESS "
            "names or on this machine.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Texts of a shard.")] = 16384,
    store: Annotated[
        Literal["float32", "float16"], typer.Option(help="Type of the numbers on disk.")
    ] = "float32",
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="Of papers, if names and contents do not tell."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Where a field of papers stands, such as title=display_name."),
    ] = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = None,
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    skip_bad: opt.SkipBad = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a folder of embeddings.")] = False,
    local_rank: opt.LocalRank = 0,
) -> None:
    """Embed papers, labels or queries; the same command again goes on where it ended."""
    # Launchers give each process its rank in the environment; --local_rank repeats it.
    del local_rank
    check_model(model)
    check_inputs(texts)
    if not overwrite:
        _check_out(out)
    from scimult.inference import SciMult
    from scimult.inference.bulk import BulkEncoder, Part, encode_shards, local_device
    from scimult.inference.incoming import count_records, read_texts
    from scimult.tasks import ALL

    fields = named_values(
        column or (), "a column", "NAME=FIELD", "--column title=display_name", lambda field: True
    )
    mine, columns = Part.parse(part), {name: field or None for name, field in fields.items()}
    if overwrite and mine.count > 1:
        fix = "remove the folder before the parts start"
        raise ConfigError("parts cannot overwrite: they would remove each other's", fix=fix)
    loading: dict[str, Any] = {"dtype": dtype, "pooling": pooling, "similarity": similarity}
    reading: dict[str, Any] = {"format": file_format, "columns": columns}
    if actors is not None:
        from scimult.inference.ray_data import encode_with_ray

        if overwrite or mine.count > 1:
            fix = "leave --overwrite and --part out; remove the folder to begin anew"
            raise ConfigError("actors of Ray divide the work themselves", fix=fix)
        options: dict[str, Any] = {"actors": actors, "rows": rows, "precision": store}
        options |= {"task": task, "role": role, "skip_bad": skip_bad}
        options |= {"loading": {**loading, "device": device}, "reading": reading}
        done = encode_with_ray(texts, model, out, **options)
        echo(f"{out}: {done.texts:,} embeddings, {done.encoded:,} of them now")
        return
    encoder = SciMult.from_pretrained(model, device=local_device(device), **loading)
    kind = "paper" if task == ALL else encoder.kind(task, role)
    total = count_records(texts, kind, file_format)
    bulk = BulkEncoder(encoder, out, task=task, role=role, precision=store, overwrite=overwrite)
    with rejecting(skip_bad) as rejects:
        incoming = read_texts(texts, kind, rejects, **reading)
        done = encode_shards(bulk, incoming, rows=rows, part=mine, total=total)
    where = f"{out}/{{{','.join(bulk.folders)}}}" if task == ALL else str(out)
    if done.missing:
        echo(
            f"{where}: {done.encoded:,} texts encoded by part {mine.index} of {mine.count}; of "
            f"{done.shards} shards {len(done.missing)} are missing, and the part that ends last "
            "makes the manifest",
            err=True,
        )
        return
    known = "" if done.encoded == done.texts else f", {done.encoded:,} of them now"
    words = f"{done.texts:,} embeddings of width {encoder.width}, by {encoder.dtype}{known}"
    echo(f"{where}: {words}")


def _check_out(out: Path) -> None:
    """Check that nothing is there but what an earlier call, or another rank, has begun."""
    try:
        check_replaceable(out)
    except StorageError:
        # Looked at afterwards: a rank may have begun it between two looks.
        if not ((out / MANIFEST).is_file() or any(out.glob(f"*/{MANIFEST}"))):
            raise
