"""Tags from a controlled vocabulary for papers, with calibrated scores and evidence."""

from scimult.tagging.reading import read_vocabulary
from scimult.tagging.tagger import SuggestedTag, Tagger
from scimult.tagging.vocabulary import Concept, Vocabulary

__all__ = ["Concept", "SuggestedTag", "Tagger", "Vocabulary", "read_vocabulary"]
