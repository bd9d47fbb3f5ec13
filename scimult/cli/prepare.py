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
) -> None:
    """Write texts, pairs with hard negatives, and tokens from raw files."""
    from scimult.cli.encoders import open_encoder
    from scimult.cli.tables import print_prepared
    from scimult.config import load_config
    from scimult.data.prepare import REJECTS_FILE
    from scimult.data.tokenization import TextTokenizer
    from scimult.mining.dataset import DatasetConfig, build_dataset

    chosen = list(overrides or ())
    if root is not None:
        chosen.append(f"root={root}")
    settings = load_config(DatasetConfig, config, chosen)
    loaded = None if tokenizer is None else TextTokenizer.from_folder(tokenizer)
    data, rejects = build_dataset(
        settings, out, tokenizer=loaded, skip_bad=skip_bad, open_encoder=open_encoder
    )
    print_prepared(data)
    if rejects.counts:
        typer.echo(f"{rejects.summary()}\nall of them: {out / REJECTS_FILE}", err=True)
