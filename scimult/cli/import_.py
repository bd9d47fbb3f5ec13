"""``scimult import``: convert third-party checkpoints to our own folder format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model, named_values, only_with
from scimult.cli.output import echo
from scimult.errors import CheckpointError, ConfigError
from scimult.files import check_replaceable

if TYPE_CHECKING:
    from scimult.checkpoints import Pretrained


def import_(
    out: opt.NewFolder,
    released: Annotated[
        Path | None,
        typer.Option(
            help="File in the format of SciMult's released checkpoints (scimult_vanilla, "
            "scimult_moe).",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="With --released: folder with the base model's tokenizer, which the file lacks.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="With --released: task of each expert, in order (repeatable). Default: search, "
            "link_prediction, classification.",
            show_default=False,
        ),
    ] = None,
    num_heads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --released: number of attention heads, unless the file or the tokenizer's "
            "folder states it, or it is that of BERT's own model of this width.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Base model of AdapterHub adapters: a Hugging Face folder or name.",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="With --base: TASK=FOLDER or TASK/SIDE=FOLDER of an AdapterHub adapter; SIDE is "
            "query or candidate (repeatable).",
            show_default=False,
        ),
    ] = None,
    similarity: Annotated[
        Literal["dot", "cosine", "l2"] | None,
        typer.Option(help="With --base: similarity of embeddings. Default: dot."),
    ] = None,
) -> None:
    """Import a released SciMult checkpoint, or a BERT with AdapterHub adapters such as SPECTER2.

    Files are opened safely: code inside a pickle never runs.
    """
    for_released = {"--tokenizer": tokenizer, "--task": task, "--num-heads": num_heads}
    for_base = {"--adapter": adapter, "--similarity": similarity}
    if (released is None) == (base is None):
        fix = "give --released FILE, or --base MODEL"
        raise ConfigError("exactly one of --released and --base is needed", fix=fix)
    only_with("--base", for_base) if base is None else only_with("--released", for_released)
    check_replaceable(out)
    from scimult.unfinished import unfinished

    with unfinished(out):
        if base is not None:
            adapters = _adapter_folders(base, adapter or [])
            check_model(Path(base))
            pretrained, lines = _adapters(base, adapters, similarity or "dot")
        else:
            assert released is not None
            pretrained, lines = _released(released, tokenizer, task, num_heads)
        from scimult.checkpoints.pretrained import save_pretrained

        for line in lines:
            echo(line)
        weights = pretrained.model.state_dict()
        save_pretrained(out, weights, pretrained.tokenizer, pretrained.config, replace=False)
    echo(f"model saved in {out}")


def _released(
    file: Path, tokenizer: Path | None, tasks: list[str] | None, num_heads: int | None
) -> tuple[Pretrained, list[str]]:
    if tokenizer is None:
        raise ConfigError("the file holds no tokenizer", path=file, fix="pass --tokenizer FOLDER")
    if not file.exists():
        raise CheckpointError("file does not exist", path=file, fix="check the path")
    from scimult.checkpoints.released import read_released

    pretrained, report = read_released(file, tokenizer, tasks=tasks, num_heads=num_heads)
    return pretrained, report.lines()


def _adapter_folders(base: str, specs: list[str]) -> dict[str, str]:
    """Return the adapters' folders by task, or task and side."""
    form, example = "TASK=FOLDER or TASK/SIDE=FOLDER", "--adapter classification=FOLDER"
    adapters = named_values(specs, "an adapter", form, example)
    if not adapters:
        raise ConfigError("no adapters for the base", value=base, fix="pass --adapter TASK=FOLDER")
    return adapters


def _adapters(
    base: str, adapters: dict[str, str], similarity: Literal["dot", "cosine", "l2"]
) -> tuple[Pretrained, list[str]]:
    from scimult.checkpoints.adapterhub import adapter_lines, import_adapters

    pretrained, by_route = import_adapters(base, adapters, similarity=similarity)
    return pretrained, adapter_lines(by_route)
