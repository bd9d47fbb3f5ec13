"""Build the model and optimizer of a run from its configuration; contradictions fail early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import torch

from scimult import __version__
from scimult.checkpoints import Pretrained, PretrainedConfig, read_config
from scimult.checkpoints.pretrained import matching_routes, start_from
from scimult.checkpoints.sentence_folder import lowercases
from scimult.checkpoints.warm_start import warm_start
from scimult.checkpoints.weights import empty_model
from scimult.config import validate
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError, ConfigError
from scimult.models import VARIANTS, Encoder, EncoderConfig, variant_layouts
from scimult.progress import warn
from scimult.tasks import TaskSet, route_names, route_of
from scimult.training.config import NOT_ARCHITECTURE, ModelConfig, PretrainConfig
from scimult.training.learned import LearnedParts
from scimult.training.optim import (
    SHARED,
    RoutedAdamW,
    added_names,
    expert_of,
    parameter_groups,
)
from scimult.training.schedules import lr_factor, warmup_steps
from scimult.types import Role

# Options of layouts without which trained weights compute something else.
_FIXED_OPTIONS = {
    "adapters": ("placement", "width"),
    "lora": ("rank", "alpha"),
    "pals": ("width", "heads", "bias", "activation"),
}
_SECTION = "section model of the run"


def build_model(config: PretrainConfig) -> Pretrained:
    """Build the encoder of a run, warm-started or new.

    Raises
    ------
    ConfigError, CheckpointError, UnknownNameError
        If sizes, variant, checkpoint and data settings do not fit together.
    """
    section = config.model
    if section.base is not None:
        described = _describe_on(config, _read_base(section.base, config.how_to_get.base))
        return _prepare_training(start_from(section.base, described, seed=config.seed), config)
    assert section.tokenizer is not None
    assert section.architecture is not None
    _check_trains(section)
    folder = Path(section.tokenizer)
    tokenizer = TextTokenizer.from_folder(folder, lowercase=lowercases(folder))
    described = _describe(config, {"vocab_size": tokenizer.vocab_size, **section.architecture})
    model = Encoder(described.encoder)
    model.initialise(config.seed)
    return _prepare_training(Pretrained(model, tokenizer, described), config)


def _check_trains(section: ModelConfig) -> None:
    """Warn of a frozen encoder of random weights; refuse to fuse adapters that learned nothing."""
    if section.variant == "fusion":
        raise ConfigError(
            "variant fusion mixes trained adapters, and a new model has none",
            fix="train the variant adapters first and name its run as model.base",
        )
    frozen = section.variant in VARIANTS and VARIANTS[section.variant].trains is not None
    if (section.train or (frozen and "added")) == "added":
        warn(
            f"variant {section.variant} trains only what it adds, and leaves a new encoder's "
            "random weights as they are: name a model.base, or set model.train to all"
        )


def _read_base(base: str, how_to_get: str) -> PretrainedConfig:
    """Read the base's config; if there is no such base, say how to get it."""
    try:
        return read_config(base)
    except CheckpointError as error:
        if Path(base).exists() or not how_to_get:
            raise
        problem = "model.base does not exist"
        raise ConfigError(problem, path=base, fix=how_to_get.strip()) from error


def rehearse_model(config: PretrainConfig, base: Pretrained) -> Pretrained:
    """Return the result of `build_model`, with shapes instead of weights, and raise its errors.

    ``base`` is the model that an earlier run will save as ``model.base``; its weights may be on
    the meta device.
    """
    assert config.model.base is not None
    described = _describe_on(config, base.config)
    model = empty_model(described.encoder)
    shapes = {name: weight.to("meta") for name, weight in base.model.state_dict().items()}
    routes = matching_routes(base.config, described, config.model.base)
    warm_start(model, shapes, config.model.base, routes)
    return _prepare_training(Pretrained(model, base.tokenizer, described), config)


def _describe_on(config: PretrainConfig, base: PretrainedConfig) -> PretrainedConfig:
    """Return the description of the run's model, warm-started from ``base``."""
    if config.model.variant == "fusion" and base.encoder.adapters is None:
        raise ConfigError(
            "variant fusion mixes trained adapters, and this base has none",
            path=config.model.base,
            fix="train the variant adapters first and name its run as model.base",
        )
    described = _describe(config, base.encoder.model_dump(exclude=set(NOT_ARCHITECTURE)))
    _check_options(config, base.encoder, described.encoder)
    # Longer texts than either training has seen are embedded worse: docs/decisions/training.md.
    seen = max(base.max_length, config.data.max_length)
    described.max_length = min(seen, described.encoder.max_text_length)
    return described


def _check_options(config: PretrainConfig, base: EncoderConfig, encoder: EncoderConfig) -> None:
    """Refuse other options of a base's adapters, updates or PALs; warn if it loses instructions."""
    if base.instructions is not None and encoder.instructions is None:
        warn(
            f"the model of {config.model.base} reads instructions, and variant "
            f"{config.model.variant} with these model.options does not: embeddings will differ "
            "from the first step on"
        )
    for field, names in _FIXED_OPTIONS.items():
        theirs, ours = getattr(base, field), getattr(encoder, field)
        if theirs is None or ours is None:
            continue
        base_options = {name: getattr(theirs, name) for name in names}
        if other := {
            name: getattr(ours, name) for name in names if base_options[name] != getattr(ours, name)
        }:
            options = ", ".join(
                f"{name}: {'null' if base_options[name] is None else base_options[name]}"
                for name in other
            )
            raise ConfigError(
                f"the {field} of this base were trained with other model.options",
                path=config.model.base,
                value=other,
                fix=f"set model.options: {{{options}}}",
            )


def _describe(config: PretrainConfig, sizes: dict[str, Any]) -> PretrainedConfig:
    section = config.model
    for name in ("dropout", "attention_dropout"):
        if (value := getattr(section, name)) is not None:
            sizes[name] = value
    routes = len(route_names(TaskSet(config.tasks), section.routing))
    num_blocks = validate(EncoderConfig, sizes, _SECTION).num_blocks
    layouts = variant_layouts(section.variant, section.options, routes, num_blocks)
    pooling = {
        "pooling": section.pooling,
        "pooling_position": section.pooling_position,
        "dims": section.dims,
    }
    encoder = validate(EncoderConfig, sizes | pooling | layouts, _SECTION)
    if section.pooling not in ("cls", encoder.pooling) or (
        section.pooling_position not in (0, encoder.pooling_position)
    ):
        warn(
            f"variant {section.variant} takes the state of token {encoder.pooling_position} "
            f"(model.options.embed_at), not model.pooling {section.pooling}"
        )
    _check_lengths(config, encoder)
    return PretrainedConfig(
        encoder=encoder,
        tasks=config.tasks,
        routing=section.routing,
        similarity=section.similarity,
        max_length=encoder.max_text_length,
        provenance={"scimult": __version__, "base": section.base, "variant": section.variant},
    )


def _check_lengths(config: PretrainConfig, encoder: EncoderConfig) -> None:
    if config.data.max_length > encoder.max_text_length:
        raise ConfigError(
            f"data.max_length exceeds the model's {encoder.max_text_length} positions",
            value=config.data.max_length,
            fix=f"set it to {encoder.max_text_length} or less",
        )
    out_of_range = [dims for dims in config.loss.matryoshka if not 1 <= dims < encoder.width]
    if out_of_range:
        raise ConfigError(
            f"loss.matryoshka lists {out_of_range}; embeddings have {encoder.width} dimensions",
            fix=f"list the shorter ones, from 1 to {encoder.width - 1}: all {encoder.width} are "
            "always trained",
        )


def _prepare_training(pretrained: Pretrained, config: PretrainConfig) -> Pretrained:
    """Select the parameters that get gradients."""
    section, model = config.model, pretrained.model
    added, trains = added_names(model), VARIANTS[section.variant].trains
    names = [name for name, _ in model.named_parameters()]
    trained = {name for name in names if trains is None or trains.search(name)}
    if section.train == "all":
        trained = set(names)
    elif section.train == "added" and trains is None:
        trained = set(added)
        if not added:
            raise ConfigError(
                f"model.train is added, but variant {section.variant} adds no parameters",
                fix="leave model.train out",
            )
    trained -= matching_names(names, section.freeze)
    if config.optimizer.added_lr is not None and not added & trained:
        adds = f"variant {section.variant} adds"
        raise ConfigError(
            "optimizer.added_lr is set, but "
            + (f"what {adds} is frozen" if added else f"{adds} no parameters"),
            fix="leave optimizer.added_lr out",
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("model.freeze leaves nothing to train", value=section.freeze)
    model.checkpoints_activations = config.engine.activation_checkpointing
    return pretrained


def check_tasks_train(pretrained: Pretrained, tasks: Iterable[str]) -> None:
    """Check that the model has weights to train for every trained task.

    Raises
    ------
    ConfigError
        If all that the texts of a task reach is frozen.
    """
    names = dict(pretrained.model.named_parameters())
    trained = {expert_of(name, names) for name, weight in names.items() if weight.requires_grad}
    still = [task for task in tasks if not trained & {SHARED, *pretrained.routes(task)}]
    if still:
        raise ConfigError(
            "model.freeze leaves nothing to train for these tasks",
            value=still,
            fix="leave their sources out by data.sources, or freeze less",
        )


def matching_names(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that match any pattern, in which ``*`` stands for anything.

    Raises
    ------
    ConfigError
        If a pattern matches no name; the message lists similar ones.
    """
    matching: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            parts = [name.split(".") for name in names]
            modules = {".".join(p[:k]) + ".*" for p in parts for k in range(1, len(p))}
            close = get_close_matches(pattern, sorted(modules | set(names)), n=3, cutoff=0.4)
            raise ConfigError(
                "a pattern of model.freeze matches no parameter",
                value=pattern,
                fix=f"use names such as {', '.join(close or sorted(modules)[:3])}",
            )
        matching |= matched
    return matching


def build_optimizer(
    config: PretrainConfig,
    model: Encoder,
    steps: int,
    loss_weights: Mapping[str, float] | None = None,
    learned: LearnedParts | None = None,
) -> tuple[RoutedAdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return AdamW over the parameter groups, and its schedule.

    Adam cancels a factor common to all gradients of a parameter, so that ``loss_weights``, by
    task, would not affect parameters of a single route or task: there they multiply the
    learning rate.
    """
    section, schedule = config.optimizer, config.schedule
    names = route_names(TaskSet(config.tasks), config.model.routing)
    groups = parameter_groups(model, section, names)
    weights: dict[int | str, float] = dict(route_weights(config, loss_weights or {}).items())
    if learned is not None:
        weights.update(learned.weights(loss_weights or {}).items())
    for group in groups:
        group["lr"] *= weights.get(group["expert"], 1.0)
    optimizer = RoutedAdamW(
        groups,
        keeps_norms=config.log.gradient_norms,
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
    )
    warmup = warmup_steps(schedule.warmup, steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: lr_factor(schedule.name, step, steps, warmup)
    )


def route_weights(config: PretrainConfig, loss_weights: Mapping[str, float]) -> dict[int, float]:
    """Return the loss weight of every trained route: the largest of its tasks.

    Where tasks share a route, their gradients carry the ratios of their weights.
    """
    weights: dict[int, float] = {}
    for task, weight in loss_weights.items():
        for role in get_args(Role):
            route = route_of(TaskSet(config.tasks), config.model.routing, task, role)
            weights[route] = max(weights.get(route, 0.0), weight)
    return weights
