"""From a configuration to the parts of a run; every contradiction is met before work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import ceil
from typing import Any

import torch

from scimult import __version__
from scimult.checkpoints import Pretrained, PretrainedConfig, read_config
from scimult.checkpoints.pretrained import start_from
from scimult.config import validate
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.sampler import Sampler, sampling_rates
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, UnknownNameError
from scimult.losses import Temperature
from scimult.models import VARIANTS, Encoder, EncoderConfig, variant_layouts
from scimult.tasks import TaskSet, route_names
from scimult.training.config import NOT_ARCHITECTURE, DataConfig, ModelConfig, PretrainConfig
from scimult.training.optim import RoutedAdamW, added_names, parameter_groups
from scimult.training.schedules import lr_factor, warmup_steps

_TEMPERATURE = "temperature"


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
        sizes = base.encoder.model_dump(exclude=set(NOT_ARCHITECTURE))
        tokenizer = None
    else:
        assert section.tokenizer is not None
        assert section.architecture is not None
        tokenizer = TextTokenizer.from_folder(section.tokenizer)
        sizes = {"vocab_size": tokenizer.vocab_size, **section.architecture}
    for name in ("dropout", "attention_dropout"):
        if (value := getattr(section, name)) is not None:
            sizes[name] = value
    encoder = _encoder_config(config, sizes)
    _check_lengths(config, encoder)
    described = PretrainedConfig(
        encoder=encoder,
        tasks=config.tasks,
        routing=section.routing,
        similarity=section.similarity,
        max_length=encoder.max_text_length,
        provenance={"scimult": __version__, "base": section.base, "variant": section.variant},
    )
    if section.base is not None:
        _check_fusion(base, section)
        return _prepare_training(start_from(section.base, described, seed=config.seed), config)
    assert tokenizer is not None
    model = Encoder(encoder)
    model.initialise(config.seed)
    return _prepare_training(Pretrained(model, tokenizer, described), config)


def _encoder_config(config: PretrainConfig, sizes: dict[str, Any]) -> EncoderConfig:
    section = config.model
    routes = len(route_names(TaskSet(config.tasks), section.routing))
    layouts = variant_layouts(section.variant, section.options, routes, sizes["num_blocks"])
    chosen = {
        "pooling": section.pooling,
        "pooling_position": section.pooling_position,
        "dims": section.dims,
    }
    return validate(EncoderConfig, sizes | chosen | layouts, "section model of the run")


def _check_lengths(config: PretrainConfig, encoder: EncoderConfig) -> None:
    if config.data.max_length > encoder.max_text_length:
        raise ConfigError(
            f"data.max_length is beyond the model's {encoder.max_text_length} positions",
            value=config.data.max_length,
            fix=f"set it to {encoder.max_text_length} or less",
        )
    beyond = [dims for dims in config.loss.matryoshka if not 1 <= dims < encoder.width]
    if beyond:
        raise ConfigError(
            f"loss.matryoshka lists {beyond}; embeddings have {encoder.width} dimensions",
            fix=f"list numbers from 1 to {encoder.width - 1}",
        )


def _check_fusion(base: PretrainedConfig | None, section: ModelConfig) -> None:
    """Fusion is a second step: what it mixes must have been trained before."""
    if section.variant == "fusion" and (base is None or base.encoder.adapters is None):
        raise ConfigError(
            "variant fusion mixes trained adapters, and this base has none",
            path=section.base,
            fix="train the variant adapters first and name its run as model.base",
        )


def _prepare_training(pretrained: Pretrained, config: PretrainConfig) -> Pretrained:
    """Say which parameters get gradients.

    Raises
    ------
    ConfigError
        If nothing would be left to train, a pattern matches nothing, or a learning rate is
        given for parameters that the variant has not.
    """
    section, model = config.model, pretrained.model
    trains = VARIANTS[section.variant].trains
    if section.train == "all":
        trains = None
    elif section.train == "added" and trains is None:
        raise ConfigError(
            f"model.train: added, but variant {section.variant} adds nothing on its own",
            fix="leave model.train out",
        )
    if config.optimizer.added_lr is not None and not added_names(model):
        raise ConfigError(
            f"optimizer.added_lr, but variant {section.variant} has no parameters of its own",
            fix="leave optimizer.added_lr out",
        )
    frozen = matching_names([name for name, _ in model.named_parameters()], section.freeze)
    for name, parameter in model.named_parameters():
        trained = trains is None or trains.search(name) is not None
        parameter.requires_grad_(trained and name not in frozen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("model.freeze leaves nothing to train", value=section.freeze)
    return pretrained


def matching_names(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that match a pattern, in which ``*`` stands for anything.

    Raises
    ------
    ConfigError
        If a pattern matches nothing; the message lists close names.
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            parts = [name.split(".") for name in names]
            modules = {".".join(p[:k]) + ".*" for p in parts for k in range(1, len(p))}
            close = get_close_matches(pattern, sorted(modules | set(names)), n=3, cutoff=0.4)
            raise ConfigError(
                "a pattern of model.freeze matches no parameter",
                value=pattern,
                fix=f"close names are {', '.join(close or sorted(modules)[:3])}",
            )
        found |= matched
    return found


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


def loss_weights(config: PretrainConfig, sources: list[PairFile]) -> dict[str, float]:
    """Return the loss weight of every task that the run trains.

    Raises
    ------
    UnknownNameError
        If a weight is given for another task.
    """
    weights = dict.fromkeys((file.task for file in sources), 1.0)
    for task, weight in config.loss.weights.items():
        if task not in weights:
            raise UnknownNameError("task in loss.weights", task, weights)
        weights[task] = weight
    return weights


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


def add_temperature(config: PretrainConfig, model: Encoder) -> Temperature | None:
    """Give the model a temperature to learn, if the loss has one; it is no part of embeddings.

    As a module below the encoder, its parameter is sharded, clipped, stepped and saved with
    all others.
    """
    if not config.loss.learn_temperature:
        return None
    assert config.loss.temperature is not None
    learned = Temperature(config.loss.temperature)
    model.add_module(_TEMPERATURE, learned)
    return learned


def take_temperature(weights: dict[str, torch.Tensor], config: PretrainConfig) -> dict[str, float]:
    """Remove a learned temperature from ``weights``; return its value by name, if there is one."""
    if not config.loss.learn_temperature:
        return {}
    assert config.loss.temperature is not None
    learned = Temperature(config.loss.temperature)
    learned.load_state_dict({"log_ratio": weights.pop(f"{_TEMPERATURE}.log_ratio")})
    return {"temperature": learned().item()}


def build_optimizer(
    config: PretrainConfig, model: Encoder, steps: int
) -> tuple[RoutedAdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return AdamW over the parameter groups, and its schedule."""
    section, schedule = config.optimizer, config.schedule
    optimizer = RoutedAdamW(
        parameter_groups(model, section, route_names(TaskSet(config.tasks), config.model.routing)),
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
    )
    warmup = warmup_steps(schedule.warmup, steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: lr_factor(schedule.name, step, steps, warmup)
    )
