"""``scimult teach``: encode a prepared folder's texts with a teacher, for distillation."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_inputs, check_output_folder, only_with
from scimult.cli.output import echo
from scimult.errors import ConfigError, one_of

if TYPE_CHECKING:
    from scimult.evaluation.systems import DenseSystem

# Passed to encoders without tasks.
ANY_TASK = "any"


def teach(
    folder: opt.Prepared,
    out: opt.NewFolder,
    model: Annotated[
        str | None,
        typer.Option(help="NAME=FOLDER[,pooling=mean][,dtype=float32]: a model, as for encode."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="NAME=PRESET or NAME=FILE.yaml[,model=FOLDER]: a sentence-transformers model."
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(help="Existing vectors: .npy, .safetensors, or a folder of scimult encode."),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(help="With a file of --vectors: text ids of its rows, one per line."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task to encode for, if the teacher distinguishes tasks.")
    ] = None,
    precision: Annotated[
        Literal["float16", "float32"], typer.Option(help="Number type on disk.")
    ] = "float16",
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder to keep embeddings in, also for scimult evaluate. Default: "
            ".OUT.unfinished, until OUT is complete.",
            show_default=False,
        ),
    ] = None,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Write a teacher's vector of every text, for loss.embedding_teacher.

    Repeat the command to resume after an interruption.
    """
    if sum(teacher is not None for teacher in (model, encoder, vectors)) != 1:
        fix = "give one of --model, --encoder and --vectors"
        raise ConfigError("exactly one teacher is needed", fix=fix)
    check_inputs([path for path in (vectors, ids) if path is not None])
    if (vectors is not None and vectors.is_file()) != (ids is not None):
        fix = "give both, or a folder of scimult encode without --ids"
        raise ConfigError("a file of vectors and --ids need each other", fix=fix)
    if vectors is not None:
        options = {"--task": task, "--store": store, "--device": device}
        only_with("--model or --encoder", options)
    from scimult.data.prepared import PreparedData
    from scimult.retrieval.embeddings import EMBEDDINGS, read_embeddings, read_vector_file
    from scimult.retrieval.teacher_vectors import write_encoded, write_imported
    from scimult.unfinished import unfinished

    check_output_folder(out, EMBEDDINGS, overwrite)
    texts = PreparedData.open(folder).texts
    if vectors is not None:
        stored = read_embeddings(vectors) if ids is None else read_vector_file(vectors, ids)
        written = write_imported(out, texts, stored, precision=precision, overwrite=overwrite)
    else:
        task = _task(model, task)
        with unfinished(out) if store is None else nullcontext(store) as cache:
            system = _system(model, encoder, device, cache, precision)
            written = write_encoded(
                out,
                texts,
                system.encoder,
                task=task,
                meta=system.describe(),
                precision=precision,
                overwrite=overwrite,
            )
    echo(f"{out}: {len(texts):,} vectors of width {written.width}, in {precision}")


def _task(model: str | None, task: str | None) -> str:
    """Return the task to encode for.

    Raises
    ------
    ConfigError
        If none is given for a model with a route per task, or one that it lacks.
    """
    from scimult.checkpoints import read_config
    from scimult.cli.systems import model_folders

    if model is None:
        return task or ANY_TASK
    configs = {folder: read_config(folder) for folder in model_folders(model)}
    for path, config in configs.items():
        if task is not None:
            one_of("task", task, [known.name for known in config.tasks], path=path)
        elif config.encoder.is_routed and len(config.tasks) > 1:
            raise ConfigError(
                "this model encodes texts differently for each task",
                value=str(path),
                fix=f"choose --task {' or '.join(task.name for task in config.tasks)}",
            )
    return task or next(iter(configs.values())).tasks[0].name


def _system(
    model: str | None,
    encoder: str | None,
    device: str | None,
    store: Path,
    precision: Literal["float16", "float32"],
) -> DenseSystem:
    from scimult.cli.systems import Store, make_systems
    from scimult.evaluation.systems import DenseSystem

    models, encoders = ([spec] if spec else [] for spec in (model, encoder))
    makers = make_systems(False, [], [], models, encoders, device, Store(store, precision))
    (make,) = makers.values()
    system = make()
    assert isinstance(system, DenseSystem)
    return system
