"""``scimult mine``: mine a prepared folder's hard negatives again, with other settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt

if TYPE_CHECKING:
    from scimult.preparation.mining.config import DenseConfig
    from scimult.preparation.mining.dense import MiningEncoder
    from scimult.preparation.mining.steps import Shard

# Variables of a process's index and of their count: torchrun, Slurm arrays, srun.
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


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
    from scimult.cli.output import print_prepared
    from scimult.config import apply_overrides, read_yaml, validate
    from scimult.data.prepared import PreparedData
    from scimult.errors import ConfigError
    from scimult.preparation.mining.config import MiningConfig
    from scimult.preparation.mining.engine import Limits
    from scimult.preparation.mining.mine import mine_again, mine_shard
    from scimult.preparation.steps import Steps

    before = read_yaml(config) if config else PreparedData.open(folder).manifest.mining
    if config and not before:
        raise ConfigError(
            "no mining settings", path=config, fix="write them, or leave --config out"
        )
    rules = validate(MiningConfig, apply_overrides(before, overrides or ()), config)
    folder = folder.resolve()
    cache = Steps(steps or folder.with_name(f".{folder.name}.steps"), verify=verify)
    if shard is not None:
        mine_shard(
            folder, rules, _shard(shard), cache, open_encoder, limits=Limits(memory, threads)
        )
        return
    mine_again(folder, rules, open_encoder, cache, limits=Limits(memory, threads))
    print_prepared(PreparedData.open(folder))


def _shard(spec: str) -> Shard:
    """Parse I/N; for ``auto``, read the rank from the launcher's environment."""
    from scimult.errors import ConfigError
    from scimult.preparation.mining.steps import Shard

    if spec == "auto":
        ranks = [(os.environ.get(a), os.environ.get(b)) for a, b in _RANKS]
        spec = next((f"{a}/{b}" for a, b in ranks if a and b), spec)
    index, _, count = spec.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        fix = "write 0/4, 1/4, 2/4 or 3/4; auto needs torchrun or Slurm"
        raise ConfigError("not a shard", value=spec, fix=fix)
    return Shard(int(index), int(count))


def open_encoder(rule: DenseConfig) -> MiningEncoder:
    """Open the model of a ``dense`` rule, for mining, which may not import encoders itself.

    Raises
    ------
    CheckpointError
        If the folder holds no suitable model.
    """
    from scimult.inference import SciMult

    return SciMult.from_pretrained(rule.model, pooling=rule.pooling, similarity=rule.similarity)
