"""Tags from a controlled vocabulary for papers, with calibrated scores and evidence."""

from scimult.tagging.reading import read_vocabulary
from scimult.tagging.vocabulary import Concept, Vocabulary

__all__ = ["Concept", "Vocabulary", "read_vocabulary"]
