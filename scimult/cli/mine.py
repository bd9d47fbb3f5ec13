"""``scimult mine``: mine the hard negatives of a prepared folder again, with other choices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mine(
    folder: Annotated[Path, typer.Argument(help="Folder that scimult prepare wrote.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value, such as max_negatives=8.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of rules; default: the choices of the last mining."),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Keeps what is mined, which a later run reuses. Default: .FOLDER.steps beside it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Replace the hard negatives of a prepared folder; texts and tokens stay."""
    from scimult.cli.encoders import open_encoder
    from scimult.cli.tables import print_prepared
    from scimult.config import apply_overrides, read_yaml, validate
    from scimult.data.prepared import PreparedData
    from scimult.preparation.mining.config import MiningConfig
    from scimult.preparation.mining.mine import mine_again
    from scimult.preparation.steps import Steps

    before = read_yaml(config) if config else PreparedData.open(folder).manifest.mining
    chosen = validate(MiningConfig, apply_overrides(before, overrides or ()), config)
    folder = folder.resolve()
    kept = Steps(steps or folder.with_name(f".{folder.name}.steps"))
    mine_again(folder, chosen, open_encoder, kept)
    print_prepared(PreparedData.open(folder))
