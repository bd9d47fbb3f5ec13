"""From a configuration to the parts of a run; every contradiction is met before work starts."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from scimult import __version__
from scimult.checkpoints import Pretrained, PretrainedConfig
from scimult.checkpoints.pretrained import read_config, start_from
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.sampler import Sampler, sampling_rates
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, UnknownNameError
from scimult.models import Encoder, EncoderConfig, variant_layout
from scimult.tasks import TaskSet
from scimult.training.config import DataConfig, PretrainConfig
from scimult.training.optim import RoutedAdamW, parameter_groups
from scimult.training.schedules import lr_factor, warmup_steps


def build_model(config: PretrainConfig) -> Pretrained:
    """Build the encoder of a run, warm-started or new.

    Raises
    ------
    ConfigError, CheckpointError, UnknownNameError
        If sizes, variant and checkpoint do not fit each other or the data settings.
    """
    section = config.model
    base = read_config(section.base) if section.base is not None else None
    if base is not None:
        sizes = base.encoder.model_dump(exclude={"pooling", "experts"})
        tokenizer = None
    else:
        assert section.tokenizer is not None
        assert section.architecture is not None
        tokenizer = TextTokenizer.from_folder(section.tokenizer)
        sizes = {"vocab_size": tokenizer.vocab_size, **section.architecture}
    for name in ("dropout", "attention_dropout"):
        if (value := getattr(section, name)) is not None:
            sizes[name] = value
    layout = variant_layout(
        section.variant, len(config.tasks), sizes["num_blocks"], section.expert_blocks
    )
    encoder = EncoderConfig(**sizes, pooling=section.pooling, experts=layout)
    if config.data.max_length > encoder.max_positions:
        raise ConfigError(
            f"data.max_length is beyond the model's {encoder.max_positions} positions",
            value=config.data.max_length,
            fix=f"set it to {encoder.max_positions} or less",
        )
    described = PretrainedConfig(
        encoder=encoder,
        tasks=config.tasks,
        similarity=section.similarity,
        max_length=encoder.max_positions,
        provenance={"scimult": __version__, "base": section.base, "variant": section.variant},
    )
    if section.base is not None:
        _check_same_experts(base, described, section.base)
        return start_from(section.base, described)
    assert tokenizer is not None
    model = Encoder(encoder)
    model.initialise(config.seed)
    return Pretrained(model, tokenizer, described)


def _check_same_experts(
    base: PretrainedConfig | None, described: PretrainedConfig, path: str
) -> None:
    """Experts go by position, so a base with experts must list the tasks in the same order."""
    if base is None or base.encoder.experts is None:
        return
    theirs, ours = ([task.name for task in c.tasks] for c in (base, described))
    if theirs != ours:
        raise ConfigError(
            f"the base's experts serve {theirs}, the run's tasks are {ours}",
            path=path,
            fix="list the same tasks in the same order",
        )


def select_sources(data: PreparedData, section: DataConfig, tasks: TaskSet) -> list[PairFile]:
    """Return the training pair files that the configuration names, all of known tasks.

    Raises
    ------
    UnknownNameError, ConfigError
        If a source is not in the prepared folder, a task is not in the run's ``tasks``, or
        a chosen source has no training pair.
    """
    files = data.pairs("train")
    for name in section.sources or ():
        if not any(name in (file.name, file.source) for file in files):
            names = [name for file in files for name in (file.source, file.name)]
            raise UnknownNameError("source in data.sources", name, set(names))
    chosen = [
        file
        for file in files
        if section.sources is None or {file.name, file.source} & set(section.sources)
    ]
    for file in chosen:
        if file.task not in tasks:
            raise UnknownNameError(f"task of source {file.source!r}", file.task, tasks.names)
    return chosen


@dataclass(frozen=True)
class RunLength:
    """How long a run is, in optimizer steps."""

    steps: int
    rows_per_unit: int
    units: int


def run_length(config: PretrainConfig, sources: list[PairFile]) -> RunLength:
    """Turn ``schedule.steps`` or ``schedule.epochs`` (all pairs once) into steps and units."""
    pairs = sum(len(file.positives.values) for file in sources)
    per_step, accumulation = config.batch.pairs_per_step, config.batch.accumulation
    steps = config.schedule.steps
    if steps is None:
        assert config.schedule.epochs is not None
        steps = max(1, ceil(config.schedule.epochs * pairs / per_step))
    return RunLength(steps, per_step // accumulation, steps * accumulation)


def build_sampler(config: PretrainConfig, sources: list[PairFile], length: RunLength) -> Sampler:
    """Plan every unit of the run."""
    rates = sampling_rates(sources, config.data.sampling, config.data.rates)
    return Sampler(
        sources, rates, rows_per_unit=length.rows_per_unit, units=length.units, seed=config.seed
    )


def build_optimizer(
    config: PretrainConfig, model: Encoder, steps: int
) -> tuple[RoutedAdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return AdamW over the parameter groups, and its schedule."""
    section, schedule = config.optimizer, config.schedule
    optimizer = RoutedAdamW(
        parameter_groups(model, section.weight_decay),
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
    )
    warmup = warmup_steps(schedule.warmup, steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: lr_factor(schedule.name, step, steps, warmup)
    )
