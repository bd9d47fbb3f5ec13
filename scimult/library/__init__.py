"""Libraries of papers: encoded once, kept up to date, searched."""

from scimult.library.library import Library
from scimult.library.results import Hit, Hits, Tagged

__all__ = ["Hit", "Hits", "Library", "Tagged"]
