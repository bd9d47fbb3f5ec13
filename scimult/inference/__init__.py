"""Using a trained model: text embeddings, and collections of papers to search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.on_demand import on_demand

if TYPE_CHECKING:
    from scimult.inference.encoder import SciMult
    from scimult.inference.ensemble import Ensemble

__all__ = ["Ensemble", "SciMult"]
__getattr__ = on_demand(
    __name__, {"Ensemble": "scimult.inference.ensemble", "SciMult": "scimult.inference.encoder"}
)
