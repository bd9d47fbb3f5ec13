"""A generated scholarly world for the demo and the tests."""

from scimult.data.synthetic.layout import write_world
from scimult.data.synthetic.settings import WorldSettings
from scimult.data.synthetic.world import World, make_world

__all__ = ["World", "WorldSettings", "make_world", "write_world"]
