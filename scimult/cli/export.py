"""``scimult export`` and ``package``: write a model for other libraries, or as a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_folder, check_model, check_output_file, only_with
from scimult.cli.output import echo
from scimult.errors import ConfigError
from scimult.files import check_replaceable, folder_bytes

if TYPE_CHECKING:
    from scimult.checkpoints import Pretrained


Target = Literal["pretrained", "folded", "sentence-transformers", "onnx", "released"]
Side = Literal["query", "candidate"]
_OF_ONE_ROUTE = ("folded", "onnx")


def export(
    model: opt.ModelArgument,
    to: Annotated[Target, typer.Option(help="Output format.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Output folder; for released, a file.", show_default=False)
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="With folded and onnx: task whose route is exported.", show_default=False
        ),
    ] = None,
    side: Annotated[
        Side | None,
        typer.Option(
            help="With folded and onnx: side of the task, if the model distinguishes sides.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Export the run's checkpoint of this step, not its final model."),
    ] = None,
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
) -> None:
    """Export a model to another format.

    pretrained: our own folder. folded: one task as a plain encoder, for any library.
    sentence-transformers: all tasks, encode(texts, task=...). onnx: one task as a graph.
    released: the file format of SciMult's authors.
    """
    if to == "released":
        check_output_file(out, overwrite=None, inputs=[])
    else:
        check_replaceable(out)
    check_model(model)
    if to not in _OF_ONE_ROUTE:
        only_with(" and ".join(_OF_ONE_ROUTE), {"--task": task, "--side": side})
    if step is not None and (pooling or similarity):
        fix = "leave out --pooling and --similarity: a run was trained with its own"
        raise ConfigError("a run's checkpoint keeps its settings", value=str(model), fix=fix)
    from scimult.unfinished import unfinished

    with unfinished(out):
        pretrained = _open(model, step, pooling, similarity)
        for line in _write(to, out, pretrained, task, side):
            echo(line)


def _open(
    model: Path, step: int | None, pooling: opt.Pooling, similarity: opt.Similarity
) -> Pretrained:
    if step is not None:
        from scimult.training.folder import load_step

        return load_step(model, step)
    from scimult.checkpoints import load_pretrained

    return load_pretrained(model, pooling=pooling, similarity=similarity)


def _write(
    to: Target, out: Path, pretrained: Pretrained, task: str | None, side: Side | None
) -> list[str]:
    """Write the export and return what the user should know about it."""
    from scimult.checkpoints import exports, save_pretrained

    notes = []
    if to == "pretrained":
        weights = pretrained.model.state_dict()
        save_pretrained(out, weights, pretrained.tokenizer, pretrained.config, replace=False)
    elif to == "folded":
        exports.export_folded(out, pretrained, task, side)
    elif to == "sentence-transformers":
        notes.extend(exports.export_sentence_transformers(out, pretrained))
    elif to == "onnx":
        from scimult.checkpoints.onnx_export import export_onnx

        difference = export_onnx(out, pretrained, task, side)
        notes.append(
            "not checked: onnxruntime is not installed"
            if difference is None
            else f"onnxruntime and PyTorch differ by at most {difference:.1e}"
        )
    else:
        from scimult.checkpoints.released_export import write_released

        check_output_file(out, overwrite=None, inputs=[])  # a faster call may have written it
        notes.extend(write_released(out, pretrained))
    size = out.stat().st_size if out.is_file() else folder_bytes(out)
    return [f"{out}: {to}, {size / 1e6:,.1f} MB", *notes]


def package(
    model: opt.ModelArgument,
    name: Annotated[
        str, typer.Option(help="Name of the model, opened as package:NAME.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the wheel.")] = Path("dist"),
    package_version: Annotated[str, typer.Option(help="Version of the package.")] = "1.0",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
) -> None:
    """Package a model as a wheel: pip install it, then use --model package:NAME."""
    check_model(model)
    check_folder(out, "the wheel")
    from scimult.checkpoints import load_pretrained
    from scimult.checkpoints.package import write_wheel

    pretrained = load_pretrained(model, pooling=pooling, similarity=similarity)
    wheel = write_wheel(out, pretrained, name, package_version)
    size = wheel.stat().st_size / 1e6
    echo(f"{wheel}: {size:,.1f} MB; once installed, use --model package:{name}")
