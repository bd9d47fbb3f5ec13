"""``scimult generate``: a small invented scholarly world to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.output import echo


def generate(
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    papers: Annotated[int, typer.Option(help="Number of papers, at least 300.")] = 3000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
) -> None:
    """Write papers, citations, fields, queries and clicks, with evaluation sets held out.

    OUT/train is input of scimult prepare, OUT/eval of scimult evaluate.
    """
    from scimult.config import validate
    from scimult.files import check_replaceable
    from scimult.preparation.world import WorldSettings, make_world, write_world
    from scimult.preparation.world.layout import WORLD

    settings = validate(WorldSettings, {"papers": papers, "seed": seed})
    check_replaceable(out, WORLD)
    records = write_world(make_world(settings), out)
    for name, count in records.items():
        echo(f"{count:>9,}  {out / name}")
