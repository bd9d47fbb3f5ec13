"""Use of a trained model: embeddings of texts, and collections of papers to search in."""

from scimult.inference.encoder import SciMult
from scimult.inference.ensemble import Ensemble

__all__ = ["Ensemble", "SciMult"]
