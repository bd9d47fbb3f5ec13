"""Stages of a curriculum: one file, in which each stage overrides sections of one run."""

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
# What the stage before decides: the model that a stage starts from.
_ORIGIN = ("base", "tokenizer", "architecture")


@dataclass(frozen=True)
class Stage:
    """One run of a curriculum: its name, and the earlier stage whose model it starts from."""

    name: str
    config: PretrainConfig
    after: str | None = None


def has_stages(path: Path | str) -> bool:
    """Return whether a configuration file describes a curriculum."""
    return STAGES in read_yaml(path)


def load_stages(
    path: Path | str, overrides: Sequence[str] = (), overlays: Sequence[Path | str] = ()
) -> list[Stage]:
    """Read a configuration with ``stages`` and return every stage's own, resolved.

    The file is that of one run plus a mapping ``stages`` from names to overrides, in the
    order in which they run. A stage is the run with its overrides on top, section by section;
    what another stage overrides does not matter to it. Its output is the sub-folder of its
    name. Every stage but the first starts from the model of the stage before it, or of the
    one that ``after`` names. Unless it says otherwise, its seed is the run's plus its place
    from 0: with equal seeds, stages on the same data would see the same batches.

    Parameters
    ----------
    path : path
        A YAML file.
    overrides : sequence of str
        ``dotted.key=value`` changes what all stages share, ``stages.NAME.key=value`` a stage.
    overlays : sequence of path
        YAML files that go on top of all stages, also of what stages have of their own.

    Raises
    ------
    ConfigError, UnknownNameError
        If any stage is not valid, or an override would be overridden by a stage.
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
            "stages run in one job and share engine.timeout_minutes",
            path=path,
            value=sorted(timeouts),
            fix="set it beside stages, not in them",
        )
    return stages


def stages_up_to(stages: Sequence[Stage], name: str) -> list[Stage]:
    """Return the stage of that name and those that it starts from, in order.

    Raises
    ------
    UnknownNameError
        If there is no such stage.
    """
    by_name = {stage.name: stage for stage in stages}
    chain: list[Stage] = []
    wanted: str | None = one_of("stage", name, by_name)
    while wanted is not None:
        chain.append(by_name[wanted])
        wanted = by_name[wanted].after
    return chain[::-1]


def _lay_over(
    tree: Mapping[str, Any], overlay: Mapping[str, Any], path: Path | str
) -> dict[str, Any]:
    """Return a curriculum with ``overlay`` on top: no stage keeps a key that it sets."""
    shared = {key: value for key, value in overlay.items() if key != STAGES}
    own = {name: _without(tree, shared) for name, tree in _own_trees(tree, path).items()}
    return merge({**tree, STAGES: own}, overlay)


def _without(tree: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tree`` without the keys of ``keys``, section by section."""
    remaining = {}
    for key, value in tree.items():
        within = keys.get(key)
        if isinstance(value, Mapping) and isinstance(within, Mapping):
            remaining[key] = _without(value, within)
        elif key not in keys:
            remaining[key] = value
    return remaining


def _own_trees(tree: Mapping[str, Any], path: Path | str) -> dict[str, dict[str, Any]]:
    """Return what each stage overrides, by name."""
    stages = tree[STAGES]
    if not isinstance(stages, Mapping) or not stages:
        fix = "write a name for each stage and, below it, what it overrides"
        raise ConfigError(
            "stages is not a mapping of names to overrides", path=path, value=stages, fix=fix
        )
    trees: dict[str, dict[str, Any]] = {}
    for name, own in stages.items():
        if not isinstance(name, str) or not _NAME.match(name):
            fix = "use letters, digits, - and _: it is the name of a folder"
            raise ConfigError("not a name of a stage", path=path, value=name, fix=fix)
        if own is not None and not isinstance(own, Mapping):
            raise ConfigError(f"stage {name!r} is not a mapping of sections", path=path, value=own)
        trees[name] = dict(own or {})
    return trees


def _check_overrides(overrides: Sequence[str], own_trees: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an override of the shared run that a stage would take back."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        again = [name for name, own in own_trees.items() if _sets(own, key.split("."))]
        if again:
            raise ConfigError(
                f"stages have {key} of their own: {', '.join(again)}",
                value=override,
                fix=f"write {STAGES}.{again[-1]}.{override}",
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
    where = f"{path}, stage {name!r}"
    before = _stage_before(own.pop(_AFTER, None), earlier, where)
    tree = merge(shared, own)
    if "output" in own:
        raise ConfigError(
            "a stage writes into the sub-folder of its name",
            path=where,
            value=own["output"],
            fix="set output beside stages, not in them",
        )
    if isinstance(shared.get("output"), str):
        tree["output"] = str(Path(shared["output"]) / name)
    if "seed" not in own:
        seed = shared.get("seed", PretrainConfig.model_fields["seed"].default)
        tree["seed"] = seed + len(earlier) if isinstance(seed, int) else seed
    if before is not None:
        tree["model"] = _model_from(before, own.get("model"), tree.get("model"), where)
    after = None if before is None else before.name
    return Stage(name, validate(PretrainConfig, tree, where), after)


def _stage_before(named: Any, earlier: Sequence[Stage], where: str) -> Stage | None:
    if named is None:
        return earlier[-1] if earlier else None
    known = {stage.name: stage for stage in earlier}
    return known[one_of("earlier stage in after", str(named), known, path=where)]


def _model_from(before: Stage, own: Any, model: Any, where: str) -> Any:
    """Return the section ``model`` of a stage that starts from another one's model."""
    given = [key for key in _ORIGIN if isinstance(own, Mapping) and own.get(key) is not None]
    if given:
        raise ConfigError(
            f"model.{given[0]}, but this stage starts from the model of stage {before.name!r}",
            path=where,
            value=own[given[0]],
            fix=f"leave it out, or name another earlier stage with {_AFTER}",
        )
    if model is not None and not isinstance(model, Mapping):
        return model
    other_keys = {key: value for key, value in (model or {}).items() if key not in _ORIGIN}
    return {"base": before.config.output, **other_keys}
