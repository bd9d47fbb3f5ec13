"""SciMult: multi-task contrastive pre-training of scientific text encoders.

``from scimult import SciMult, Library`` imports ``scimult.inference`` and ``scimult.library`` on
demand: ``import scimult`` alone loads no torch. Type checkers read ``__init__.pyi``.
"""

from scimult.on_demand import on_demand

__version__ = "0.2.0"
__all__ = ["Ensemble", "Library", "SciMult", "__version__"]
__getattr__ = on_demand(
    __name__,
    {
        "Ensemble": "scimult.inference",
        "Library": "scimult.library",
        "SciMult": "scimult.inference",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
