"""Libraries of papers: encoded once, kept up to date, searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.on_demand import on_demand

if TYPE_CHECKING:
    from scimult.library.library import Library
    from scimult.library.results import Hit, Hits, Tagged

__all__ = ["Hit", "Hits", "Library", "Tagged"]
_RESULTS = dict.fromkeys(("Hit", "Hits", "Tagged"), "scimult.library.results")
__getattr__ = on_demand(__name__, {"Library": "scimult.library.library", **_RESULTS})
