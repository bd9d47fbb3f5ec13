"""``scimult pretrain``: one pre-training run, on one rank or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def pretrain(
    config: Annotated[Path, typer.Option(help="YAML of the run.", show_default=False)],
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Argument(help="Changes to the config: dotted.key=value.", show_default=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Refuse a folder that holds a run, do not resume.")
    ] = False,
    local_rank: Annotated[int, typer.Option("--local_rank", hidden=True)] = 0,
) -> None:
    """Pre-train an encoder; continues from the newest whole checkpoint of its folder.

    On several ranks: deepspeed --num_gpus 2 launch/pretrain.py --config FILE [key=value ...],
    or the same under torchrun.
    """
    from scimult import distributed
    from scimult.config import load_config
    from scimult.training.config import PretrainConfig
    from scimult.training.loop import NonFiniteError
    from scimult.training.run import pretrain as run
    from scimult.training.stopping import StoppedError

    # Launchers give each process its rank in the environment; --local_rank repeats it.
    del local_rank
    settings = load_config(PretrainConfig, config, overrides or [])
    try:
        model = run(settings, resume=not fresh)
    except NonFiniteError:
        # Every rank stops for the same reason: one of them says it.
        if distributed.is_main():
            raise
        raise typer.Exit(1) from None
    except StoppedError as stopped:
        if distributed.is_main():
            typer.echo(str(stopped), err=True)
        raise typer.Exit(128 + stopped.signal) from None
    if distributed.is_main():
        typer.echo(f"model saved in {model}")
