"""Merge models that started from one base, by `arithmetic` on their weights.

Of low-rank updates it is the products that are merged: the product of two averages is not the
average of two products.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from scimult.checkpoints.arithmetic import (
    BLOCK,
    Weights,
    add_task_vectors,
    average,
    cosine,
    depth_factors,
    slerp,
)
from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.fold import fold
from scimult.checkpoints.pretrained import Pretrained, load_pretrained, matching_routes
from scimult.checkpoints.warm_start import in_bank, warm_start
from scimult.checkpoints.weights import check_finite
from scimult.errors import CheckpointError, ConfigError, one_of
from scimult.models import Encoder
from scimult.models.low_rank import with_factors, with_products
from scimult.models.variants import variant_layouts
from scimult.progress import warn
from scimult.tasks import tells_sides
from scimult.types import Role

Method = Literal["average", "task_vectors", "slerp"]

# Cosine of weights: 0.004 for two random starts, 0.88 for a start and what training makes of it.
_UNRELATED = 0.2
# What has a random start of its own. Low-rank updates are merged as products, which need none in
# common; matrices that start at zero (up) say nothing of a start.
_STARTS = {
    "weights": re.compile(rf"^{BLOCK.pattern}(?!.*\b(adapter|lora|pal)\.)"),
    "adapters": re.compile(r"\.adapter\.bank\..*\.down\."),
    "fusions": re.compile(r"\.adapter\.fusion\..*\.(query|key)\."),
    "projected attention": re.compile(r"^pal_projections\.down\.|\.pal\.qkv\."),
    "control codes": re.compile(r"^embeddings\.codes\."),
}
# Training settings in which merged models may differ.
_MAY_DIFFER = {"dropout", "attention_dropout", "initializer_range"}


def merge(
    models: Sequence[Path | str],
    shares: Sequence[float] = (),
    *,
    method: Method = "average",
    base: Path | str | None = None,
    by_depth: tuple[float, float] | None = None,
) -> Pretrained:
    """Merge whole models; a model without experts counts as one with equal experts.

    Low-rank updates are merged as the matrices that they add to their linears. The merged ones can
    have a higher rank, at most the sum of all ranks; alpha / rank stays.

    Parameters
    ----------
    models : sequence of path
        Runs, saved models or Hugging Face folders. The first one's settings are kept; if it has no
        experts, the tasks are those of the first model that has some.
    shares : sequence of float, optional
        One per model: its share of an average, or the scale of its task vector; by default
        1 / number of models. ``slerp`` takes two, the second of which is how far to rotate.
    method : {"average", "task_vectors", "slerp"}
        See the functions of these names.
    base : path, optional
        The base of task vectors.
    by_depth : tuple of float, optional
        Factors of task vectors in the first and last block; see `depth_factors`.

    Raises
    ------
    ConfigError, UnknownNameError
        If there is no such method, or shares, the base or factors by depth do not fit it.
    CheckpointError
        If models differ in size, tokenizer, tasks or settings; the message names what differs.
    """
    factors = list(shares) or [1 / max(1, len(models))] * len(models)
    check_choice(models, factors, method, base, by_depth)
    loaded = [load_pretrained(path) for path in models]
    paths = list(models)
    if base is not None:  # last: the tasks and the layout are those of the models
        loaded.append(load_pretrained(base))
        paths.append(base)
    config, weights = _in_one_layout(loaded, paths)
    if config.encoder.lora is not None:
        weights = [with_products(each) for each in weights]
    if method == "average":
        merged = average(weights, factors)
    elif method == "task_vectors":
        num_blocks = config.encoder.num_blocks
        depth = depth_factors(weights[0], by_depth, num_blocks) if by_depth else None
        merged = add_task_vectors(weights[-1], weights[:-1], factors, depth)
    else:
        merged = slerp(weights[0], weights[1], factors[1] / sum(factors))
    if config.encoder.lora is not None:
        check_finite(merged, "a merged weight")  # which a decomposition must be
        layout, merged = with_factors(merged, config.encoder.lora, len(weights))
        encoder = config.encoder.model_copy(update={"lora": layout})
        config = config.model_copy(update={"encoder": encoder})
    provenance = {
        "method": method,
        "models": [str(path) for path in models],
        "shares": factors,
        "base": None if base is None else str(base),
        **({"by_depth": list(by_depth)} if by_depth else {}),
    }
    return _merged_model(loaded[0], config, merged, provenance)


def share_experts(path: Path | str, shares: Mapping[str, float] | None = None) -> Pretrained:
    """Average the experts of each block (or low-rank updates) into one that all tasks share.

    Parameters
    ----------
    path : path
        A model with experts or low-rank updates.
    shares : mapping, optional
        Share of each task; by default equal ones.

    Raises
    ------
    ConfigError, UnknownNameError
        If the model has no experts, or a share is negative or of an unknown task.
    CheckpointError
        If the model cannot be folded into a plain encoder.
    """
    model = load_pretrained(path)
    if not model.config.encoder.is_routed:
        fix = "name a run with experts or low-rank updates; all tasks of this one share all weights"
        raise ConfigError("the model has no experts to share", path=path, fix=fix)
    names = model.tasks.names
    for name in shares or ():
        model.tasks[name]
    factors = [1.0 if shares is None else shares.get(name, 0.0) for name in names]
    _check_shares(factors)
    sides: tuple[Role | None, ...] = (None,)
    if tells_sides(model.config.routing):
        sides = ("query", "candidate")
    parts = [
        (share, fold(model, name, side))
        for name, share in zip(names, factors, strict=True)
        for side in sides
    ]
    merged = average([weights for _, (_, weights) in parts], [share for share, _ in parts])
    config = parts[0][1][0].model_copy(update={"tasks": model.config.tasks})
    provenance = {"method": "share_experts", "models": [str(path)], "shares": factors}
    return _merged_model(model, config, merged, provenance)


def split_experts(models: Mapping[str, Path | str], variant: str) -> Pretrained:
    """Turn single-task models into experts of one model, and average all other layers.

    Parameters
    ----------
    models : mapping
        Each task to the model that becomes its expert.
    variant : {"mha_expert", "ffn_expert", "mha_ffn_expert"}
        Which layers become experts, in every second block.

    Raises
    ------
    ConfigError, UnknownNameError
        If a model does not know its task or has routes by side, or the variant has no experts.
    CheckpointError
        If models differ in size, tokenizer or settings, or cannot be folded.
    """
    loaded = {task: load_pretrained(path) for task, path in models.items()}
    for task, model in loaded.items():
        one_of("task", task, model.tasks.names, path=models[task])
    tasks = [model.tasks[task] for task, model in loaded.items()]
    folded = []
    for task, model in loaded.items():
        if model.config.encoder.is_routed and tells_sides(model.config.routing):
            problem = "queries and candidates have experts of their own, but a task has one"
            fix = "average them first, with scimult merge MODEL --share-experts"
            raise ConfigError(problem, path=models[task], fix=fix)
        config, weights = fold(model, task if model.config.encoder.is_routed else None)
        folded.append(Pretrained(_encoder(config, weights), model.tokenizer, config))
    plain, parts = _in_one_layout(folded, list(models.values()), check_tasks=False)
    layouts = variant_layouts(variant, {}, len(tasks), plain.encoder.num_blocks)
    if layouts.keys() != {"experts"}:
        raise ConfigError("variant has no experts", value=variant, fix="use mha_expert or another")
    encoder = plain.encoder.model_copy(update=layouts)
    config = plain.model_copy(update={"encoder": encoder, "tasks": tasks})
    merged = _encoder(config, average(parts, [1.0] * len(parts))).state_dict()
    for route, weights in enumerate(parts):
        own = _encoder(config, weights).state_dict()
        merged |= {
            name: weight
            for name, weight in own.items()
            if (match := in_bank(name, own)) and int(match[2]) == route
        }
    provenance = {
        "method": "split_experts",
        "models": {task: str(path) for task, path in models.items()},
    }
    return _merged_model(folded[0], config, merged, provenance)


def check_choice(
    models: Sequence[Path | str],
    shares: Sequence[float],
    method: Method,
    base: Path | str | None,
    by_depth: tuple[float, float] | None,
) -> None:
    """Check what needs no model of the arguments of `merge`; there is a share for each model.

    Raises
    ------
    ConfigError, UnknownNameError
        As `merge`.
    """
    one_of("method", method, get_args(Method))
    if len(shares) != len(models):
        problem = f"{len(shares)} shares for {len(models)} models"
        raise ConfigError(problem, value=list(shares), fix="give one per model")
    if (method == "task_vectors") != (base is not None):
        fix = "give a base for task_vectors only"
        raise ConfigError("task vectors and a base go together", value=method, fix=fix)
    if len(models) + (base is not None) < 2:
        raise ConfigError("merging needs at least two models", fix="give two or more")
    if method == "slerp" and len(models) != 2:
        raise ConfigError("slerp needs exactly two models", value=len(models), fix="give two")
    _check_shares(shares, negative=method == "task_vectors")
    if by_depth is not None and method != "task_vectors":
        fix = "use method task_vectors with the base, or leave the factors out"
        raise ConfigError("factors by depth scale task vectors only", value=method, fix=fix)
    if not all(math.isfinite(factor) and factor >= 0 for factor in by_depth or ()):
        fix = "give two numbers of at least 0, such as 1:0"
        raise ConfigError("a factor by depth is negative or not finite", value=by_depth, fix=fix)


def _check_shares(shares: Sequence[float], *, negative: bool = False) -> None:
    if not all(map(math.isfinite, [*shares, sum(shares)])):
        problem, fix = "a share is not a finite number, or their sum", "give finite numbers"
        raise ConfigError(problem, value=list(shares), fix=fix)
    if not negative and (min(shares) < 0 or not sum(shares) > 0):
        fix = "give shares of at least 0, and one above it"
        raise ConfigError("shares must not be negative, nor all 0", value=list(shares), fix=fix)


def _in_one_layout(
    models: Sequence[Pretrained], paths: Sequence[Path | str], *, check_tasks: bool = True
) -> tuple[PretrainedConfig, list[dict[str, Tensor]]]:
    """Return a config that all models fit, and the weights of each in its layout."""
    target = _layout_of([model.config for model in models])
    weights = []
    for model, path in zip(models, paths, strict=True):
        differences = _differences(target, model.config, check_tasks=check_tasks)
        tokenizers = models[0].tokenizer.fingerprint, model.tokenizer.fingerprint
        if tokenizers[0] != tokenizers[1]:
            differences["fingerprint of the tokenizer"] = tokenizers
        _refuse(differences, path)
        routes = matching_routes(model.config, target, path)
        weights.append(_encoder(target, model.model.state_dict(), routes).state_dict())
        _warn_of_starts(weights[0], weights[-1], f"{paths[0]} and {path}")
    return target, weights


def check_alike(
    configs: Mapping[str, PretrainedConfig], *, check_tasks: bool = True
) -> PretrainedConfig:
    """Refuse models, by name, that cannot be merged; return the config whose layout all get.

    Raises
    ------
    CheckpointError
        If they differ in size, tasks (unless ``check_tasks`` is off) or settings.
    """
    target = _layout_of(list(configs.values()))
    for name, config in configs.items():
        _refuse(_differences(target, config, check_tasks=check_tasks), name)
    return target


def _layout_of(configs: Sequence[PretrainedConfig]) -> PretrainedConfig:
    """Return the first config with experts, else the first."""
    return next((config for config in configs if config.encoder.is_routed), configs[0])


def _refuse(differences: Mapping[str, tuple[Any, Any]], path: Path | str) -> None:
    if differences:
        listed = ", ".join(f"{name} {a!r} and {b!r}" for name, (a, b) in differences.items())
        fix = "merge models that were trained from one base"
        raise CheckpointError(f"models differ in {listed}", path=path, fix=fix)


def _warn_of_starts(first: Weights, second: Weights, names: str) -> None:
    """Warn of the first part of two models that had two random starts."""
    for part, pattern in _STARTS.items():
        closeness = cosine(first, second, pattern)
        if closeness < _UNRELATED:
            warn(
                f"{names} did not start from one model (cosine of their {part} {closeness:.2f}): "
                "merged, they are most likely worse than each"
            )
            return


def _differences(
    target: PretrainedConfig, config: PretrainedConfig, *, check_tasks: bool
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by name; a plain encoder has equal experts, zero updates."""
    ours, theirs = target.encoder.model_dump(), config.encoder.model_dump()
    ignored = _MAY_DIFFER | (set() if config.encoder.is_routed else {"experts", "lora"})
    pairs = {
        name: (ours[name], theirs[name])
        for name in ours
        if ours[name] != theirs[name] and name not in ignored
    }
    for name in ("similarity", "unit_vectors"):
        if getattr(target, name) != getattr(config, name):
            pairs[name] = (getattr(target, name), getattr(config, name))
    names = ([task.name for task in target.tasks], [task.name for task in config.tasks])
    if check_tasks and sorted(names[0]) != sorted(names[1]):
        pairs["tasks"] = names
    return pairs


def _encoder(
    config: PretrainedConfig, weights: Weights, routes: Sequence[int] | None = None
) -> Encoder:
    """Return an encoder with these weights; a shared layer is copied to every expert.

    Low-rank updates that the weights lack are zero.
    """
    model = Encoder(config.encoder)
    if config.encoder.lora is not None:
        model.initialise(0)
    warm_start(model, dict(weights), routes=routes)
    return model


def _merged_model(
    like: Pretrained, config: PretrainedConfig, weights: Weights, provenance: dict[str, Any]
) -> Pretrained:
    check_finite(weights, "a merged weight")
    tree = like.config.model_dump() | {
        "encoder": config.encoder.model_dump(),
        "routing": config.routing,
        "tasks": [task.model_dump() for task in config.tasks],
        "provenance": {"merged": provenance},
    }
    merged = PretrainedConfig.model_validate(tree)
    return Pretrained(_encoder(merged, weights).eval(), like.tokenizer, merged)
