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
) -> None:
    """Replace the hard negatives of a prepared folder; texts and tokens stay."""
    from scimult.cli.tables import print_prepared
    from scimult.config import apply_overrides, validate
    from scimult.data.prepared import PreparedData
    from scimult.mining.mine import MiningConfig, mine_again

    before = PreparedData.open(folder).manifest["mining"]
    mine_again(folder, validate(MiningConfig, apply_overrides(before, overrides or ())))
    print_prepared(PreparedData.open(folder))
