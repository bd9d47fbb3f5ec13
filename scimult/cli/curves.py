"""``scimult curves``: learning curves of runs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.output import echo
from scimult.files import check_own_file


def curves(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of runs.")],
    out: Annotated[Path, typer.Option(help="PNG to write.")] = Path("curves.png"),
) -> None:
    """Plot dev scores and training losses over the steps of one or more runs."""
    from scimult.training.curves import plot_curves

    check_own_file(out, "a picture of curves", b"Matplotlib")
    plot_curves(runs, out)
    echo(f"plotted {len(runs)} run(s) in {out}")
