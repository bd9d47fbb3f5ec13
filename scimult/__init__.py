"""SciMult: multi-task contrastive pre-training of scientific text encoders.

``from scimult import SciMult, Library`` imports the classes of ``scimult.inference`` and
``scimult.library`` when they are asked for:
``import scimult`` alone loads no torch. Type checkers read ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["Ensemble", "Library", "SciMult", "__version__"]
_ROOMS = {
    "Ensemble": "scimult.inference",
    "Library": "scimult.library",
    "SciMult": "scimult.inference",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
