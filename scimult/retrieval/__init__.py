"""Ranking candidates for queries: exact dense search, BM25, ranked lists and judgments."""

from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.runs import Qrels, Ranking

__all__ = ["BM25Index", "ExactIndex", "Qrels", "Ranking"]
