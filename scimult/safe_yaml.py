"""Safe YAML with the numbers of YAML 1.2, in which a key is a unique scalar."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""What `load` raises."""
_MOST_VALUES = 1_000_000

# libyaml, ten times as fast, is in every binary package of PyYAML.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc,valid-type]
    """Safe YAML with the numbers of YAML 1.2, in which a key is a unique scalar.

    ``3e-4`` is a number and ``010`` is 10; times (``12:30``) and dates are text.
    """

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        _check_keys(node, set())
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        digits = node.value.replace("_", "")
        base = {"0x": 16, "0b": 2}.get(digits.lstrip("+-")[:2], 10)
        return int(digits, base)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number: float = super().construct_yaml_float(node)
        if not math.isfinite(number):
            problem = f"{node.value} is not a finite number"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return number


class Dumper(yaml.SafeDumper):
    """Quotes what this or another reader of YAML would not take for text."""


_INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("int", "float"))
_REPLACED = {_INT, _FLOAT, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag not in _REPLACED]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Underscores and 0b are those of YAML 1.1 and Python.
_NUMBERS = {
    _INT: r"[-+]?([0-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)",
    _FLOAT: r"[-+]?(([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))"
    r"|\.(nan|NaN|NAN)",
}
for _tag, _form in _NUMBERS.items():
    for _either in (_Loader, Dumper):
        _either.add_implicit_resolver(_tag, re.compile(f"^({_form})$"), list("-+.0123456789"))
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
_Loader.add_constructor(_FLOAT, _Loader.construct_yaml_float)


def load(text: str) -> Any:
    """Read YAML; raise one of ``NOT_YAML``, also if aliases expand to too many values."""
    tree = yaml.load(text, Loader=_Loader)
    if _expanded_size(tree, {}) > _MOST_VALUES:
        raise ValueError("its aliases (*name) expand to too many values")
    return unshared(tree)


def _check_keys(node: yaml.Node | None, seen: set[int]) -> None:
    """Refuse keys that are no scalars or repeated, before merge keys (<<) are written out.

    Merged keys then repeat those of the mapping that overrides them.
    """
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen)
        return
    names: set[str] = set()
    for key, value in node.value:
        problem = None
        if not isinstance(key, yaml.ScalarNode):
            problem = "a key is a list or a mapping, not a word"
        elif key.value in names:
            problem = f"duplicate key {key.value!r}"
        if problem is not None:
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        names.add(key.value)
        _check_keys(value, seen)


def _expanded_size(value: Any, known: dict[int, int]) -> int:
    """Return the number of values with every alias written out."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1  # seen only by a list that contains itself
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded_size(item, known) for item in items)
    return known[id(value)]


def unshared(value: Any) -> Any:
    """Copy each alias: an override of one place must not change the other."""
    if isinstance(value, dict):
        return {key: unshared(item) for key, item in value.items()}
    return [unshared(item) for item in value] if isinstance(value, list) else value


def problem_of(error: Exception) -> str:
    """Return a one-line reason why a text is not YAML."""
    reason = str(getattr(error, "problem", None) or error)
    if isinstance(error, RecursionError) or "nesting depth" in reason:
        return "nested too deeply"
    return " ".join(reason.split())
