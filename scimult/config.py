"""Strict typed configuration: YAML files that include each other, and dotted overrides."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from scimult import safe_yaml
from scimult.errors import ConfigError, shown, suggest
from scimult.files import write_text
from scimult.terminal import shortened

INCLUDE = "include"
_MOST_PROBLEMS = 20
_MOST_REPEATED = 40
_SHOULD_BE = "Input should be "
# What pydantic adds to the location of a problem with one branch of a union.
_BRANCH = re.compile(r"bool|int|float|str|constrained-\w+|(literal|list|tuple|dict)\[.*\]")
_QUOTED = re.compile(r"'([^']+)'")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)  # as os.path.expandvars reads them
# Files of which each includes the next.
_DEEPEST = 100


class StrictConfig(BaseModel):
    """Base of every configuration section: rejects unknown keys and validates values."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, given: Any) -> Any:
        """Refuse true and false for numbers: pydantic reads them as 1 and 0."""
        for key, field in cls.model_fields.items() if isinstance(given, dict) else ():
            types = _types_in(field.annotation)
            if types & {int, float} and not types & {bool, Any} and _has_truth(given.get(key)):
                raise ValueError(f"{key} should be a number, not true or false")
        return given


C = TypeVar("C", bound=StrictConfig)


def load_config(
    schema: type[C],
    path: Path | str,
    overrides: Sequence[str] = (),
    overlays: Sequence[Path | str] = (),
) -> C:
    """Read a YAML file, merge overlays onto it, apply overrides and validate the result.

    Parameters
    ----------
    schema : type
        The section class that describes the whole file.
    path : path
        A YAML mapping. Its key ``include`` names other files, relative to this one, which are
        merged in order below the file's own keys.
    overrides : sequence of str
        ``dotted.key=value``; the value is YAML (``train.lr=3e-4``, ``tasks=[a, b]``).
    overlays : sequence of path
        More YAML files; later ones win.

    Raises
    ------
    ConfigError
        With the file, the dotted key, the value and the closest known key.
    """
    tree = read_yaml(path)
    for overlay in overlays:
        tree = merge(tree, read_yaml(overlay))
    return validate(schema, apply_overrides(tree, overrides), named(path, overlays))


def named(path: Path | str, overlays: Sequence[Path | str] = ()) -> str:
    """Return how messages refer to a file with overlays."""
    return " with ".join(map(str, (path, *overlays)))


def apply_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of ``tree`` with ``dotted.key=value`` overrides applied.

    Raises
    ------
    ConfigError
        If an override is not ``key=value``, or its key goes below a plain value.
    """
    changed = copy.deepcopy(dict(tree))
    for override in overrides:
        _apply_override(changed, override)
    return changed


def string_override(key: str, text: str) -> str:
    """Return the override of a key with a text, in quotes where YAML would read another value."""
    try:
        plain = _value(text) == text
    except safe_yaml.NOT_YAML:
        plain = False
    return f"{key}={text if plain else json.dumps(text, ensure_ascii=False)}"


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``base`` overridden by ``top``, section by section."""
    return _merge(copy.deepcopy(dict(base)), copy.deepcopy(dict(top)))


def validate(schema: type[C], tree: Mapping[str, Any], path: Path | str | None = None) -> C:
    """Validate a nested mapping against ``schema``; errors are ``ConfigError``."""
    try:
        return schema.model_validate(dict(tree))
    except ValidationError as error:
        details = _merged(error.errors())
        problems = [_describe(schema, detail) for detail in details[:_MOST_PROBLEMS]]
        if len(details) > _MOST_PROBLEMS:
            problems.append(f"and {len(details) - _MOST_PROBLEMS:,} more")
        raise ConfigError("\n  ".join(["invalid configuration:", *problems]), path=path) from None


def unset_variables(text: str) -> list[str]:
    """Return the environment variables that ``os.path.expandvars`` would leave in a text."""
    names = (name.strip("{}") for name in _VARIABLE.findall(text))
    return [name for name in names if name not in os.environ]


def save_config(config: StrictConfig, path: Path | str) -> None:
    """Write the resolved configuration as YAML, atomically."""
    write_text(path, yaml_text(config.model_dump(mode="json")))


def yaml_text(tree: Mapping[str, Any]) -> str:
    """Return the YAML from which `read_yaml` reads the same values."""
    return yaml.dump(tree, Dumper=safe_yaml.Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping and everything it includes."""
    return _with_included(Path(path), (), {})


def _with_included(
    path: Path, chain: tuple[Path, ...], known: dict[Path, dict[str, Any]]
) -> dict[str, Any]:
    """Return a file's mapping over those that it includes; ``chain`` includes it.

    ``known`` are files that are read already: of thirty that include the next one twice, the last
    is included a billion times.
    """
    if path.resolve() in chain:
        raise ConfigError("a file includes itself", path=path, fix="remove the include")
    if len(chain) == _DEEPEST:
        fix = "include them from one file"
        raise ConfigError(f"{_DEEPEST} files include each the next", path=path, fix=fix)
    tree = _read_file(path)
    included = tree.pop(INCLUDE, [])
    names = [included] if isinstance(included, str) else included
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("include is not a file name or a list of them", path=path, value=included)
    merged: dict[str, Any] = {}
    for other in (path.parent / name for name in names):
        # Of a link it is the link's folder that names are relative to.
        place = other.parent.resolve() / other.name
        if place not in known:
            known[place] = _with_included(other, (*chain, path.resolve()), known)
        _merge(merged, safe_yaml.unshared(known[place]))
    return _merge(merged, tree)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = safe_yaml.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("file does not exist", path=path, fix="check the path") from None
    except IsADirectoryError:
        raise ConfigError("is a folder", path=path, fix="give a YAML file") from None
    except OSError as error:
        problem = f"cannot read: {error.strerror}"
        raise ConfigError(problem, path=path, fix="check the path") from None
    except safe_yaml.NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            f"not a valid YAML file: {safe_yaml.problem_of(error)}",
            path=path,
            line=None if mark is None else mark.line + 1,
            fix="write one key: value per line, indented by section",
        ) from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError("expected a mapping of keys to values", path=path, value=tree)
    return tree


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value
    return base


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, separator, raw = override.partition("=")
    if not separator or not key.strip():
        fix = "write dotted.key=value, all of it in quotes if the value has spaces"
        raise ConfigError("override is not key=value", value=override, fix=fix)
    node, last = tree, key.strip()
    while (parent := _first_of(last, node)) != last:
        last = last[len(parent) + 1 :]
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            fix = f"override the whole value: {key.strip().removesuffix(f'.{last}')}=..."
            raise ConfigError(
                f"override goes below {parent!r}, which is a value", value=override, fix=fix
            )
    try:
        node[last] = _value(raw)
    except safe_yaml.NOT_YAML as error:
        problem = f"override is not valid YAML: {safe_yaml.problem_of(error)}"
        fix = f"""if it is text, put it in two pairs of quotes: "{key.strip()}='...'\""""
        raise ConfigError(problem, value=override, fix=fix) from None


def _value(raw: str) -> Any:
    """Return the value that an override's text stands for."""
    # A glob such as *.csv, where a YAML alias would have no anchor; a separator, which alone is
    # no YAML.
    is_plain = raw.startswith("*") or raw in ("|", ">", ",", "&", "%", "@")
    return raw if is_plain else safe_yaml.load(raw)


def _first_of(dotted: str, node: Mapping[str, Any]) -> str:
    """Return the first key of a dotted one; a key of ``node`` may have dots itself."""
    known = (key for key in node if isinstance(key, str) and f"{dotted}.".startswith(f"{key}."))
    return max(known, key=len, default=dotted.partition(".")[0])


def _merged(details: Sequence[Any]) -> list[dict[str, Any]]:
    """Return pydantic's problems, those of the branches of one union as a single one.

    It adds the name of the branch to their locations; a key of that name has no other beside it.
    """
    branches: dict[tuple[Any, ...], set[str]] = {}
    for detail in details:
        for depth, part in enumerate(map(str, detail["loc"])):
            if _BRANCH.fullmatch(part):
                branches.setdefault(detail["loc"][:depth], set()).add(part)
    merged: list[dict[str, Any]] = []
    for detail in details:
        where = detail["loc"]
        parts = [
            part
            for depth, part in enumerate(where)
            if len(branches.get(where[:depth], ())) < 2 or not _BRANCH.fullmatch(str(part))
        ]
        of_union = bool(where) and len(branches.get(where[:-1], ())) > 1
        one = {**detail, "loc": tuple(parts), "of_union": of_union}
        last = merged[-1] if merged else {}
        if of_union and last.get("of_union") and last["input"] is one["input"]:
            branch = _message(one).removeprefix(_SHOULD_BE)
            last |= {"type": "union", "msg": f"{_message(last)}, or {branch}"}
        else:
            merged.append(one)
    return merged


def _describe(schema: type[BaseModel], detail: Mapping[str, Any]) -> str:
    location = ".".join(str(part) for part in detail["loc"] if part != "[key]")
    if detail["type"] == "extra_forbidden":
        known = _known_keys(schema, detail["loc"][:-1])
        hint = suggest(str(detail["loc"][-1]), known)
        return f"{location}: unknown key{hint}; known keys: {', '.join(sorted(known)) or 'none'}"
    context = detail.get("ctx", {})
    if detail["type"] == "union_tag_not_found":
        return f"{location}: key {context['discriminator']} is required"
    if detail["type"] == "union_tag_invalid":
        known = context["expected_tags"].replace("'", "").split(", ")
        hint = suggest(context["tag"], known)
        key = context["discriminator"].strip("'")
        return (
            f"{location}.{key}: unknown {key} {context['tag']!r}{hint}; known: {', '.join(known)}"
        )
    message = _message(detail)
    if detail["type"] == "value_error" and not location:
        return message
    if detail["type"] in ("missing", "value_error"):
        return f"{location}: {message}"
    if detail["loc"] and detail["loc"][-1] == "[key]":
        message = message.replace("Input", "Key", 1)
    given = detail["input"]
    hint = suggest(given, _QUOTED.findall(message)) if isinstance(given, str) else ""
    return f"{location or '(top level)'}: {message} (value: {shown(given)}){hint}"


def _message(detail: Mapping[str, Any]) -> str:
    """Return what pydantic says of a value, with what it leaves out."""
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "Input should be a mapping of keys to values"
    if detail["type"] == "string_type" and isinstance(detail["input"], (bool, int, float)):
        message += ": put words that YAML takes for numbers, yes or no in quotes"
    if detail["type"] == "list_type" and isinstance(detail["input"], str):
        message += f", such as [{shortened(detail['input'], _MOST_REPEATED)}]"
    return message


def _known_keys(schema: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the field names of the section at ``location``."""
    current: type[BaseModel] | None = schema
    choices: list[type[BaseModel]] = []
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        field = current.model_fields.get(str(part))
        if field is not None:
            choices = _sections_in(field.annotation)
            current = choices[0] if choices else current
        else:  # the tag of a discriminated union
            current = next((choice for choice in choices if _has_tag(choice, part)), current)
    return list(current.model_fields) if current is not None else []


def _types_in(annotation: Any) -> set[Any]:
    """Return the plain types of an annotation, also those inside lists, mappings and unions."""
    inner = [_types_in(arg) for arg in get_args(annotation)]
    return set().union(*inner) if inner else {annotation}


def _has_truth(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_truth, value))
    return isinstance(value, bool) or (isinstance(value, dict) and _has_truth([*value.values()]))


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for arg in get_args(annotation) for section in _sections_in(arg)]


def _has_tag(section: type[BaseModel], tag: str) -> bool:
    return any(tag in get_args(field.annotation) for field in section.model_fields.values())
