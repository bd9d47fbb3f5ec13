"""Where the tasks of a mixture pull a model in different directions, and what to do about it."""

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
