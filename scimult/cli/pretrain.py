"""``scimult pretrain``: pre-train a run or a curriculum, on one rank or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.output import echo


def pretrain(
    config: Annotated[
        list[Path],
        typer.Option(
            help="Config of the run; further ones are overlays, of its stages too (repeatable).",
            show_default=False,
        ),
    ],
    overrides: opt.Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Fail if the folder holds a run, instead of resuming.")
    ] = False,
    stage: Annotated[
        str | None,
        typer.Option(
            help="With stages: run only this stage and those it starts from.",
            show_default=False,
        ),
    ] = None,
    local_rank: opt.LocalRank = 0,
) -> None:
    """Pre-train an encoder, resuming from the newest complete checkpoint in its folder.

    A config with `stages` runs them in order and skips finished ones.

    On several ranks: deepspeed --num_gpus 2 launch/pretrain.py --config FILE key=value ...,
    or the same under torchrun.
    """
    from scimult import distributed
    from scimult.training.loop import NonFiniteError
    from scimult.training.stopping import StoppedError

    # Launchers give each process its rank in the environment; --local_rank repeats it.
    del local_rank
    try:
        model = _run(config, overrides or [], stage, resume=not fresh)
    except NonFiniteError:
        # All ranks stop for the same reason: only one reports it.
        if distributed.is_main():
            raise
        raise typer.Exit(1) from None
    except StoppedError as stopped:
        if distributed.is_main():
            echo(str(stopped), err=True)
        raise typer.Exit(128 + stopped.signal) from None
    if distributed.is_main():
        echo(f"model saved in {model}")


def _run(configs: list[Path], overrides: list[str], stage: str | None, *, resume: bool) -> Path:
    """Run the stages or the single run of the first config, with the others as overlays."""
    from scimult.config import load_config
    from scimult.errors import ConfigError
    from scimult.training.config import PretrainConfig
    from scimult.training.curriculum import run_stages
    from scimult.training.run import pretrain as run
    from scimult.training.stages import has_stages, load_stages, stages_up_to

    config, *overlays = configs
    if has_stages(config):
        stages = load_stages(config, overrides, overlays)
        return run_stages(stages_up_to(stages, stage) if stage else stages, resume=resume)
    if stage is not None:
        raise ConfigError("this config has no stages", path=config, fix="leave out --stage")
    return run(load_config(PretrainConfig, config, overrides, overlays), resume=resume)


# What launch/pretrain.py runs; a study has only the installed package.
if __name__ == "__main__":
    from scimult.cli.main import launch

    launch("pretrain")
