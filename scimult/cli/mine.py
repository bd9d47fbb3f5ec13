"""``scimult mine``: mine a prepared folder's hard negatives again, with other settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt

if TYPE_CHECKING:
    from scimult.preparation.mining.config import DenseConfig
    from scimult.preparation.mining.dense import MiningEncoder
    from scimult.preparation.mining.steps import Shard

_ARRAY = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT")]
_TORCHRUN, _SRUN = ["RANK", "WORLD_SIZE"], ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]


def mine(
    folder: opt.Prepared,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides: key=value, such as max_negatives=8.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Mining config (YAML). Default: the settings of the last mining."),
    ] = None,
    steps: opt.Steps = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit of this process, mapped files included, such as 4GB; the rest goes "
            "to disk. Default: no limit, except four fifths of the machine's for the engine.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Engine threads. Default: one per core.", show_default=False),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Mine every N-th block from block I on (0/N to N-1/N) into --steps; 'auto': by "
            "the ranks of torchrun or Slurm. When all are done, mine without --shard.",
            show_default=False,
        ),
    ] = None,
    verify: opt.Verify = False,
) -> None:
    """Replace a prepared folder's hard negatives; texts and tokens stay."""
    from scimult.cli.output import echo, print_prepared
    from scimult.config import apply_overrides, read_yaml, validate
    from scimult.data.prepared import PreparedData
    from scimult.errors import ConfigError
    from scimult.preparation.mining.config import MiningConfig
    from scimult.preparation.mining.engine import Limits
    from scimult.preparation.mining.mine import mine_again, mine_shard
    from scimult.preparation.steps import Steps

    given, folder = folder, folder.resolve()
    if steps is not None and steps.resolve().is_relative_to(folder):
        # The prepared folder is replaced as a whole.
        fix = "keep them beside it, or leave --steps out"
        raise ConfigError("--steps is inside the prepared folder", value=steps, fix=fix)
    before = read_yaml(config) if config else PreparedData.open(folder).manifest.mining
    if config and not before:
        raise ConfigError(
            "no mining settings", path=config, fix="write them, or leave --config out"
        )
    rules = validate(MiningConfig, apply_overrides(before, overrides or ()), config)
    cache = Steps(steps or folder.with_name(f".{folder.name}.steps"), verify=verify)
    if shard is not None:
        mined = _shard(shard)
        mine_shard(folder, rules, mined, cache, open_encoder, limits=Limits(memory, threads))
        echo(f"shard {mined.index}/{mined.count} is mined; after all, mine without --shard")
        return
    mine_again(folder, rules, open_encoder, cache, limits=Limits(memory, threads))
    print_prepared(PreparedData.open(given))


def _shard(spec: str) -> Shard:
    """Parse I/N; for ``auto``, read the rank from the launcher's environment."""
    from scimult.errors import ConfigError
    from scimult.preparation.mining.steps import Shard

    shard = _launched(os.environ) if spec == "auto" else spec
    index, _, count = (shard or "").partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        fix = "write 0/4, 1/4, 2/4 or 3/4; auto needs torchrun, a Slurm array or srun"
        raise ConfigError("not a shard", value=spec, fix=fix)
    return Shard(int(index), int(count))


def _launched(environment: Mapping[str, str]) -> str | None:
    """Return I/N of this process: by its task of a Slurm array, and its rank of torchrun or srun.

    Raises
    ------
    ConfigError
        If the array's numbers are unevenly spaced, so that one does not tell its position.
    """
    from scimult.errors import ConfigError

    environment = {name: value for name, value in environment.items() if value}
    launcher = _TORCHRUN if environment.keys() >= set(_TORCHRUN) else _SRUN
    if not {_ARRAY[0], launcher[1]} & environment.keys():
        return None
    index, first, last, count = (
        int(environment.get(name, n)) for name, n in zip(_ARRAY, "0001", strict=True)
    )
    position, uneven = divmod((index - first) * (count - 1), max(last - first, 1))
    if uneven:
        fix = "use an array such as 0-15, 1-16 or 1-31:2, or give --shard as I/N"
        raise ConfigError("array's task numbers are unevenly spaced", value=index, fix=fix)
    rank, ranks = (int(environment.get(name, n)) for name, n in zip(launcher, "01", strict=True))
    return f"{position * ranks + rank}/{count * ranks}"


def open_encoder(rule: DenseConfig) -> MiningEncoder:
    """Open the model of a ``dense`` rule, for mining, which may not import encoders itself.

    Raises
    ------
    CheckpointError
        If the folder holds no suitable model.
    ConfigError
        See `scimult.distributed.use_own_gpu`.
    """
    from scimult import distributed
    from scimult.inference import SciMult

    distributed.use_own_gpu()
    return SciMult.from_pretrained(rule.model, pooling=rule.pooling, similarity=rule.similarity)
