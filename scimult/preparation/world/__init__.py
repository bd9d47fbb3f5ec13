"""A generated scholarly world for the demo and the tests."""

from scimult.preparation.world.fields import WorldSettings
from scimult.preparation.world.layout import write_world
from scimult.preparation.world.world import World, make_world

__all__ = ["World", "WorldSettings", "make_world", "write_world"]
