"""Stages of a curriculum: one file in which each stage overrides sections of a shared run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scimult.config import apply_overrides, merge, named, read_yaml, validate
from scimult.errors import ConfigError, one_of
from scimult.training.config import PretrainConfig

STAGES = "stages"
_AFTER = "after"
_NAME = re.compile(r"^[A-Za-z0-9_-]+$")
# Keys of the section ``model`` that an earlier stage determines.
_ORIGIN = ("base", "tokenizer", "architecture")


@dataclass(frozen=True)
class Stage:
    """One run of a curriculum; ``after`` names the stage whose model it starts from."""

    name: str
    config: PretrainConfig
    after: str | None = None


def has_stages(path: Path | str) -> bool:
    """Return whether a configuration file describes a curriculum."""
    return STAGES in read_yaml(path)


def load_stages(
    path: Path | str, overrides: Sequence[str] = (), overlays: Sequence[Path | str] = ()
) -> list[Stage]:
    """Read a configuration with ``stages`` and return the resolved stages.

    The file is that of one run plus a mapping ``stages`` from names to overrides, in execution
    order. A stage is the run with its overrides on top, section by section, independent of other
    stages' overrides. Its output is the sub-folder of its name. Every stage but the first starts
    from the model of the previous stage, or of the one that ``after`` names. By default, its seed
    is the run's plus its index from 0: with equal seeds, stages on the same data would see the
    same batches.

    The override ``dotted.key=value`` changes all stages, ``stages.NAME.key=value`` a single one.
    ``overlays`` are YAML files laid over all stages, including the stages' own overrides.

    Raises
    ------
    ConfigError, UnknownNameError
        If a stage is invalid, or overrides an override.
    """
    tree = read_yaml(path)
    names = list(_own_trees(tree, path))
    for overlay in overlays:
        tree = _lay_over(tree, read_yaml(overlay), path)
    path = named(path, overlays)
    tree = apply_overrides(tree, overrides)
    own_trees = _own_trees(tree, path)
    for name in own_trees:
        one_of("stage", name, names, path=path)
    _check_overrides(overrides, own_trees)
    shared = {key: value for key, value in tree.items() if key != STAGES}
    stages: list[Stage] = []
    for name, own in own_trees.items():
        stages.append(_stage(name, own, shared, stages, path))
    timeouts = {stage.config.engine.timeout_minutes for stage in stages}
    if len(timeouts) > 1:
        raise ConfigError(
            "stages run in one job and must share engine.timeout_minutes",
            path=path,
            value=sorted(timeouts),
            fix="set it outside stages",
        )
    return stages


def stages_up_to(stages: Sequence[Stage], name: str) -> list[Stage]:
    """Return a stage and the stages that it builds on, in order.

    Raises
    ------
    UnknownNameError
        If there is no such stage.
    """
    by_name = {stage.name: stage for stage in stages}
    chain: list[Stage] = []
    current: str | None = one_of("stage", name, by_name)
    while current is not None:
        chain.append(by_name[current])
        current = by_name[current].after
    return chain[::-1]


def _lay_over(
    tree: Mapping[str, Any], overlay: Mapping[str, Any], path: Path | str
) -> dict[str, Any]:
    """Lay ``overlay`` over a curriculum; its keys replace those of stages, too."""
    shared = {key: value for key, value in overlay.items() if key != STAGES}
    own = {name: _without(tree, shared) for name, tree in _own_trees(tree, path).items()}
    return merge({**tree, STAGES: own}, overlay)


def _without(tree: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the keys of ``keys`` from ``tree``, section by section."""
    remaining = {}
    for key, value in tree.items():
        below = keys.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            remaining[key] = _without(value, below)
        elif key not in keys:
            remaining[key] = value
    return remaining


def _own_trees(tree: Mapping[str, Any], path: Path | str) -> dict[str, dict[str, Any]]:
    """Return each stage's overrides, by name."""
    stages = tree[STAGES]
    if not isinstance(stages, Mapping) or not stages:
        fix = "write a name for each stage and, below it, its overrides"
        raise ConfigError(
            "stages is not a mapping of names to overrides", path=path, value=stages, fix=fix
        )
    trees: dict[str, dict[str, Any]] = {}
    for name, own in stages.items():
        if not isinstance(name, str) or not _NAME.match(name):
            fix = "use letters, digits, - and _, because it becomes a folder's name"
            raise ConfigError("invalid name of a stage", path=path, value=name, fix=fix)
        if own is not None and not isinstance(own, Mapping):
            raise ConfigError(f"stage {name!r} is not a mapping of sections", path=path, value=own)
        trees[name] = dict(own or {})
    return trees


def _check_overrides(overrides: Sequence[str], own_trees: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an override of the shared run that a stage would replace."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        setting = [name for name, own in own_trees.items() if _sets(own, key.split("."))]
        if setting:
            raise ConfigError(
                f"these stages set {key} themselves: {', '.join(setting)}",
                value=override,
                fix=f"write {STAGES}.{setting[-1]}.{override}",
            )


def _sets(tree: Mapping[str, Any], keys: Sequence[str]) -> bool:
    if keys[0] not in tree:
        return False
    below = tree[keys[0]]
    return len(keys) == 1 or not isinstance(below, Mapping) or _sets(below, keys[1:])


def _stage(
    name: str,
    own: dict[str, Any],
    shared: dict[str, Any],
    earlier: Sequence[Stage],
    path: Path | str,
) -> Stage:
    location = f"{path}, stage {name!r}"
    before = _stage_before(own.pop(_AFTER, None), earlier, location)
    tree = merge(shared, own)
    if "output" in own:
        raise ConfigError(
            "a stage always writes into the sub-folder of its name",
            path=location,
            value=own["output"],
            fix="set output outside stages",
        )
    if shared.get("output") and isinstance(shared["output"], str):
        tree["output"] = str(Path(shared["output"]) / name)
    if "seed" not in own:
        seed = shared.get("seed", PretrainConfig.model_fields["seed"].default)
        tree["seed"] = seed + len(earlier) if type(seed) is int else seed
    if before is not None:
        tree["model"] = _model_from(before, own.get("model"), tree.get("model"), location)
    after = None if before is None else before.name
    return Stage(name, validate(PretrainConfig, tree, location), after)


def _stage_before(after: Any, earlier: Sequence[Stage], location: str) -> Stage | None:
    if after is None:
        return earlier[-1] if earlier else None
    known = {stage.name: stage for stage in earlier}
    return known[one_of("earlier stage in after", str(after), known, path=location)]


def _model_from(before: Stage, own: Any, model: Any, location: str) -> Any:
    """Return the section ``model`` of a stage that starts from another one's model."""
    given = [key for key in _ORIGIN if isinstance(own, Mapping) and own.get(key) is not None]
    if given:
        raise ConfigError(
            f"this stage sets model.{given[0]}, but starts from the model of stage {before.name!r}",
            path=location,
            value=own[given[0]],
            fix=f"leave it out, or name another earlier stage with {_AFTER}",
        )
    if model is not None and not isinstance(model, Mapping):
        return model
    other_keys = {key: value for key, value in (model or {}).items() if key not in _ORIGIN}
    return {"base": before.config.output, **other_keys}
