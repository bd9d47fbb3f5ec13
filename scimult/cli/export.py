"""``scimult export``: a model for other libraries, or from a checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from scimult.checkpoints import Pretrained

Target = Literal["pretrained", "folded", "sentence-transformers", "onnx", "released"]
_OF_ONE_TASK = ("folded", "onnx")


def export(
    model: Annotated[
        str, typer.Argument(help="A run, a saved model, a BERT folder or a name on the hub.")
    ],
    to: Annotated[Target, typer.Option(help="Form of the output.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder to write; a file for released.", show_default=False)
    ],
    task: Annotated[
        str | None, typer.Option(help="Whose experts: for folded and onnx.", show_default=False)
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="The run's checkpoint of this step, not its final model."),
    ] = None,
) -> None:
    """Write a model in another form.

    pretrained: our own folder. folded: one task as a plain BERT, for any library.
    sentence-transformers: all tasks, encode(texts, task=...). onnx: one task as a graph.
    released: the file form of SciMult's authors.
    """
    if out.exists():
        raise StorageError("output exists already", path=out, fix="choose another path")
    if task is not None and to not in _OF_ONE_TASK:
        fix = f"leave --task out, or export to {' or '.join(_OF_ONE_TASK)}"
        raise ConfigError(f"--task has no meaning for {to}", value=task, fix=fix)
    for line in _write(to, out, _open(model, step), task):
        typer.echo(line)


def _open(model: str, step: int | None) -> Pretrained:
    if step is not None:
        from scimult.training.export import load_step

        return load_step(Path(model), step)
    from scimult.checkpoints import load_pretrained

    return load_pretrained(model)


def _write(to: Target, out: Path, pretrained: Pretrained, task: str | None) -> list[str]:
    """Write the export and return what the user should know about it."""
    from scimult.checkpoints import exports, save_pretrained

    notes = []
    if to == "pretrained":
        weights = pretrained.model.state_dict()
        save_pretrained(out, weights, pretrained.tokenizer, pretrained.config)
    elif to == "folded":
        exports.export_folded(out, pretrained, task)
    elif to == "sentence-transformers":
        exports.export_sentence_transformers(out, pretrained)
        if pretrained.config.encoder.experts is not None:
            copies = len(pretrained.tasks)
            notes.append(f"what the tasks share is there {copies} times, once per task")
    elif to == "onnx":
        from scimult.checkpoints.onnx_export import export_onnx

        difference = export_onnx(out, pretrained, task)
        notes.append(
            "not checked: onnxruntime is not installed"
            if difference is None
            else f"onnxruntime and PyTorch differ by at most {difference:.1e}"
        )
    else:
        from scimult.checkpoints.released_export import write_released

        notes.extend(write_released(out, pretrained))
    size = out.stat().st_size if out.is_file() else exports.folder_bytes(out)
    return [f"{out}: {to}, {size / 1e6:,.1f} MB", *notes]
