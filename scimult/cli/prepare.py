"""``scimult prepare``: raw papers, citations, labels and queries to a folder for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    config: Annotated[Path, typer.Option(help="YAML file such as configs/data/world.yaml.")],
    out: Annotated[Path, typer.Option(help="Folder to write; a prepared one is replaced.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, on top of the file.", show_default=False)
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder that the paths in the file are relative to.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model or tokenizer folder; tokenise now with it.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad records out, count and name them.")
    ] = False,
    decontaminate: Annotated[
        Path | None,
        typer.Option(
            help="Folder of evaluation sets: training texts that equal one of their queries go."
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Keeps finished steps, which a later run reuses. Default: .OUT.steps beside OUT.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenise.")] = 1,
) -> None:
    """Write texts, pairs with hard negatives, and tokens from raw files."""
    from scimult.cli.tables import print_prepared
    from scimult.config import load_config
    from scimult.data.collected import REJECTS_FILE
    from scimult.data.tokenization import TextTokenizer
    from scimult.mining.dataset import DatasetConfig, build_dataset

    chosen = [] if decontaminate is None else _decontaminate(decontaminate)
    chosen.extend(overrides or ())
    if root is not None:
        chosen.append(f"root={root}")
    settings = load_config(DatasetConfig, config, chosen)
    loaded = None if tokenizer is None else TextTokenizer.from_folder(tokenizer)
    data, rejects = build_dataset(
        settings,
        out,
        tokenizer=loaded,
        skip_bad=skip_bad,
        steps=steps or out.with_name(f".{out.name}.steps"),
        workers=workers,
    )
    print_prepared(data)
    if rejects.counts:
        typer.echo(f"{rejects.summary()}\nall of them: {out / REJECTS_FILE}", err=True)


def _decontaminate(folder: Path) -> list[str]:
    """Return the settings that the option stands for; those given by name go on top."""
    return [f"hygiene.evaluation={folder}", "hygiene.decontaminate=[query]"]
