"""Measure where the tasks of a mixture interfere in a model, and suggest a layout of experts."""

from scimult.training.interference.cosines import InterferenceMap, PairCell, compare
from scimult.training.interference.gradients import RoundProducts, measure
from scimult.training.interference.layout import SuggestedLayout, suggest_layout

__all__ = [
    "InterferenceMap",
    "PairCell",
    "RoundProducts",
    "SuggestedLayout",
    "compare",
    "measure",
    "suggest_layout",
]
