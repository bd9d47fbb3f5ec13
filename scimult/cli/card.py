"""``scimult card``: a data card of a prepared folder, in Markdown with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.output import echo
from scimult.files import check_own_file


def card(
    folder: opt.Prepared,
    out: Annotated[
        Path | None,
        typer.Option(help="Markdown file to write. Default: FOLDER/card.md.", show_default=False),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Number of papers for language identification.")
    ] = 2000,
    negatives: Annotated[
        int,
        typer.Option(min=0, help="Hard negatives to show per rule, by their titles."),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed for choosing the hard negatives.")] = 0,
) -> None:
    """Write a prepared folder's counts, lengths, labels, languages, duplicates and overlap."""
    path = out or folder / "card.md"
    check_own_file(path, "a data card", b"Written by `scimult card`")
    from scimult.data.prepared import PreparedData
    from scimult.preparation.hygiene.card import write_card

    data = PreparedData.open(folder)
    write_card(data, path, sample=sample, negatives=negatives, seed=seed)
    echo(path)
