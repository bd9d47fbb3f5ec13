"""``scimult import``: checkpoints of others, made into a folder of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from scimult.errors import StorageError


def import_(
    released: Annotated[
        Path,
        typer.Option(
            help="File in the form of SciMult's released checkpoints (scimult_vanilla, "
            "scimult_moe).",
            show_default=False,
        ),
    ],
    tokenizer: Annotated[
        Path,
        typer.Option(
            help="Folder with the base model's tokenizer, which the file does not hold.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    task: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Option(
            help="Task of an expert, once per expert, in order. Default: search, "
            "link_prediction, classification.",
            show_default=False,
        ),
    ] = None,
    num_heads: Annotated[
        Optional[int],  # noqa: UP045 - as above
        typer.Option(
            min=1, help="Attention heads, if neither 64 wide nor in the tokenizer's folder."
        ),
    ] = None,
) -> None:
    """Import a released SciMult checkpoint; none of the code in its pickle runs."""
    from scimult.checkpoints.pretrained import save_pretrained
    from scimult.checkpoints.released import read_released

    if out.exists():
        raise StorageError("output exists already", path=out, fix="choose another folder")
    pretrained, report = read_released(released, tokenizer, tasks=task, num_heads=num_heads)
    for line in report.lines():
        typer.echo(line)
    weights = pretrained.model.state_dict()
    save_pretrained(out, weights, pretrained.tokenizer, pretrained.config)
    typer.echo(f"model saved in {out}")
