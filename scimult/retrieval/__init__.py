"""Ranking candidates for queries: exact dense search, BM25, ranked lists and judgments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.on_demand import on_demand

if TYPE_CHECKING:
    from scimult.retrieval.bm25 import BM25Index
    from scimult.retrieval.exact import ExactIndex
    from scimult.retrieval.runs import Qrels, Ranking

__all__ = ["BM25Index", "ExactIndex", "Qrels", "Ranking"]
__getattr__ = on_demand(
    __name__,
    {
        "BM25Index": "scimult.retrieval.bm25",
        "ExactIndex": "scimult.retrieval.exact",
        "Qrels": "scimult.retrieval.runs",
        "Ranking": "scimult.retrieval.runs",
    },
)
