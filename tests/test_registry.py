from __future__ import annotations

import pytest

from scimult.errors import UnknownNameError
from scimult.registry import Registry


def _shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape")

    @registry.register("circle")
    class Circle:
        pass

    @registry.register("square")
    class Square:
        pass

    assert (Circle.__name__, Square.__name__) == ("Circle", "Square")
    return registry


def test_registered_names_are_found_in_order() -> None:
    registry = _shapes()
    assert list(registry) == ["circle", "square"]
    assert len(registry) == 2
    assert "circle" in registry
    assert "cube" not in registry
    assert registry["square"].__name__ == "Square"


def test_unknown_name_suggests() -> None:
    with pytest.raises(UnknownNameError, match="unknown shape.*did you mean 'circle'"):
        _shapes()["circel"]


def test_a_name_cannot_be_registered_twice() -> None:
    registry = _shapes()
    with pytest.raises(AssertionError, match="registered twice"):
        registry.register("circle")(int)
