"""``scimult encode``: encode papers, labels or queries into shards of embeddings."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_inputs, check_model
from scimult.cli.common import rejecting
from scimult.cli.library import columns_of
from scimult.cli.output import echo
from scimult.errors import ConfigError, StorageError
from scimult.files import check_replaceable


def encode(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Papers: JSON lines or one JSON array, CSV, TSV, Parquet, BibTeX, RIS, .nbib, "
            ".enw, Web of Science, dumps of OpenAlex and others (.gz; patterns such as "
            "'works/*.gz'), or a folder. Labels or queries: JSON lines (labels also CSV or TSV), "
            "or a folder of them."
        ),
    ],
    model: opt.Model,
    out: Annotated[
        Path,
        typer.Option(help="Folder of shards to write or to continue.", show_default=False),
    ],
    task: Annotated[
        str,
        typer.Option(
            help="Task to encode for. all: papers for every task, with one pass through the "
            "shared blocks and one folder per task."
        ),
    ],
    role: Annotated[
        Literal["query", "candidate"],
        typer.Option(help="Side of the task; with --task all, for tasks with papers on both."),
    ] = "candidate",
    part: Annotated[
        str | None,
        typer.Option(
            help="I/N, from 0/N: encode only shards I, I+N, I+2N, ... Ranks of torchrun and "
            "deepspeed divide the work automatically.",
            show_default=False,
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of Ray Data actors to encode with, on the cluster at $RAY_ADDRESS or "
            "on this machine.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Texts per shard.")] = 16384,
    precision: Annotated[
        Literal["float32", "float16"],
        typer.Option("--precision", "--store", help="Number type on disk."),
    ] = "float32",
    form: opt.Format = None,
    column: opt.Columns = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = None,
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    skip_bad: opt.SkipBad = False,
    overwrite: opt.Overwrite = False,
    local_rank: opt.LocalRank = 0,
) -> None:
    """Encode papers, labels or queries; repeat the command to resume after an interruption."""
    # Launchers give each process its rank in the environment; --local_rank repeats it.
    del local_rank
    check_model(model)
    check_inputs(texts)
    if not overwrite:
        _check_out(out, rows)
    from scimult import distributed
    from scimult.inference import SciMult
    from scimult.inference.bulk import BulkEncoder, Part, encode_shards, kind_encoded
    from scimult.inference.incoming import count_records, read_texts
    from scimult.tasks import ALL
    from scimult.unfinished import only_call

    mine = Part.parse(part)
    if overwrite and mine.count > 1:
        fix = "remove the folder before the parts start"
        raise ConfigError("parts cannot overwrite: they would remove each other's shards", fix=fix)
    loading: dict[str, Any] = {"dtype": dtype, "pooling": pooling, "similarity": similarity}
    reading: dict[str, Any] = {"format": form, "columns": columns_of(column)}
    if actors is not None:
        from scimult.inference.ray_data import encode_with_ray

        if overwrite or mine.count > 1:
            fix = "leave out --overwrite and --part; remove the folder to start over"
            raise ConfigError("Ray actors divide the work themselves", fix=fix)
        options: dict[str, Any] = {"actors": actors, "rows": rows, "precision": precision}
        options |= {"task": task, "role": role, "skip_bad": skip_bad}
        options |= {"loading": {**loading, "device": device}, "reading": reading}
        done = encode_with_ray(texts, model, out, **options)
        echo(f"{out}: {done.texts:,} embeddings, {done.encoded:,} of them new")
        return
    distributed.use_own_gpu(device)
    encoder = SciMult.from_pretrained(model, device=device, **loading)
    kind = kind_encoded(encoder.tasks, task, role)
    total = count_records(texts, kind, form)
    # Parts share the folder.
    alone = only_call(out) if mine.count == 1 else nullcontext()
    with alone, rejecting(skip_bad) as rejects:
        bulk = BulkEncoder(
            encoder, out, task=task, role=role, precision=precision, overwrite=overwrite
        )
        incoming = read_texts(texts, kind, rejects, **reading)
        done = encode_shards(bulk, incoming, rows=rows, part=mine, total=total)
    where = f"{out}/{{{','.join(bulk.folders)}}}" if task == ALL else str(out)
    if done.missing:
        echo(
            f"{where}: {done.encoded:,} texts encoded by part {mine.index} of {mine.count}; "
            f"shards still missing: {len(done.missing)} of {done.shards}; the last part to finish "
            "writes the manifest",
            err=True,
        )
        return
    new = "" if done.encoded == done.texts else f", {done.encoded:,} of them new"
    how = f"of width {encoder.width}, computed in {encoder.dtype}"
    echo(f"{where}: {done.texts:,} embeddings {how}{new}")


def _check_out(out: Path, rows: int) -> None:
    """Check that the folder is new, or was begun by an earlier call or another rank alike."""
    from scimult.retrieval.shard_folders import check_rows, has_manifest

    try:
        check_replaceable(out)
    except StorageError:
        # Checked last, as another rank may have begun it in between.
        begun = list(filter(has_manifest, [out, *out.glob("*")]))
        if not begun:
            raise
        for folder in begun:
            check_rows(folder, rows)
