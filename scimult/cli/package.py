"""``scimult package``: a model as a wheel, for machines without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.checks import check_model
from scimult.cli.common import Pooling, Similarity
from scimult.cli.output import echo


def package(
    model: Annotated[
        Path,
        typer.Argument(help="A run, a saved model, a Hugging Face folder or a name on the hub."),
    ],
    name: Annotated[
        str, typer.Option(help="Of the model: package:NAME opens it.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder that gets the wheel.")] = Path("dist"),
    package_version: Annotated[str, typer.Option(help="Version of the package.")] = "1.0",
    pooling: Pooling = None,
    similarity: Similarity = None,
) -> None:
    """Write a wheel that holds a model: pip install it, then use --model package:NAME."""
    check_model(model)
    from scimult.checkpoints import load_pretrained
    from scimult.checkpoints.package import write_wheel

    pretrained = load_pretrained(model, pooling=pooling, similarity=similarity)
    wheel = write_wheel(out, pretrained, name, package_version)
    echo(f"{wheel}: {wheel.stat().st_size / 1e6:,.1f} MB; once installed, --model package:{name}")
