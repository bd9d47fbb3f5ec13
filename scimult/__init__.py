"""SciMult: multi-task contrastive pre-training of scientific text encoders.

``from scimult import SciMult`` is ``scimult.inference.SciMult``, imported when it is asked for:
``import scimult`` alone loads no torch. Type checkers read ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["Ensemble", "SciMult", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Ensemble", "SciMult"):
        return getattr(import_module("scimult.inference"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
