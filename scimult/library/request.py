"""The options of a search; contradictions are refused before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from scimult.errors import ConfigError, one_of
from scimult.library.filters import Where
from scimult.types import FloatArray

if TYPE_CHECKING:
    from scimult.retrieval.space import Space

_PAGE = 10
Method = Literal["auto", "exact", "approximate"]


@dataclass(frozen=True)
class Request:
    """One search.

    Parameters
    ----------
    text : str
        Words to search for.
    ids : sequence of str
        Papers of the library to start from; excluded from the results. With several, or together
        with ``text``, the mean of their vectors is searched for, each first scaled to length 1 if
        the similarity is cosine.
    vector : array, optional
        A vector to search for, shape ``(D,)``, instead of text and ids.
    space : Space, optional
        Origin of ``vector``; refused unless it is the library's.
    k : int, optional
        Results per page: 10, or all with ``min_score``.
    offset : int
        Results to skip: ``k=10, offset=20`` is the third page. Pages of one ``k`` neither repeat
        nor skip papers; behind an approximate index, a later page may begin with a better score
        than the last of the page before.
    min_score : float, optional
        Return everything with at least this score instead of the best ``k``.
    where : str or mapping, optional
        A filter on the columns; see `scimult.library.filters`.
    only, exclude : sequence of str
        Ids to restrict the results to, or to leave out; some may be of no paper here.
    method : {"auto", "exact", "approximate"}
        ``auto`` uses the approximate index if there is one and it pays off.
    words : float, optional
        Weight of BM25 next to the vectors, each list's scores scaled to 0 to 1; 0.5 weighs both
        alike, 1 is BM25 alone. "rank" adds reciprocal ranks instead, "tuned" uses the tuned weight.
    rerank : str, optional
        A sentence-transformers cross-encoder that reorders the first ``rerank_top``, or ``k`` if
        that is more; further pages are refused.
    percentile : bool
        Whether to report how much of the library scores lower than each result.
    """

    text: str = ""
    ids: Sequence[str] = ()
    vector: FloatArray | None = None
    space: Space | None = None
    k: int | None = None
    offset: int = 0
    min_score: float | None = None
    where: Where | None = None
    only: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    method: Method = "auto"
    words: float | Literal["rank", "tuned"] | None = None
    rerank: str | None = None
    rerank_top: int = 100
    percentile: bool = False

    def __post_init__(self) -> None:
        text: object = self.text
        if not isinstance(text, str):
            fix = "pass a string; several searches are several calls, ids of papers go to ids"
            raise ConfigError("text is not a string", value=text, fix=fix)
        for name in ("ids", "only", "exclude"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"{name} is a string", value=getattr(self, name), fix="pass a list"
                )
        one_of("method", self.method, get_args(Method))
        given = bool(self.text.strip()) or len(self.ids) > 0
        if given == (self.vector is not None):
            fix = "give text, ids of papers, or a vector"
            problem = "both a vector and texts to search for" if given else "nothing to search for"
            raise ConfigError(problem, fix=fix)
        page = (1 if self.k is None else self.k, self.offset)
        if not all(hasattr(n, "__index__") for n in page) or page[0] < 1 or page[1] < 0:
            fix = "use k of at least 1 and offset of at least 0"
            raise ConfigError("no such page", value={"k": self.k, "offset": self.offset}, fix=fix)
        if self.min_score is not None:
            self._check_threshold()
        if self.words is not None:
            self._check_words()
        if self.rerank is not None:
            self._check_reranking()
        if self.vector is not None and np.ndim(self.vector) != 1:
            fix = "pass one vector, shape (D,)"
            raise ConfigError("not a vector", value=f"shape {np.shape(self.vector)}", fix=fix)

    @property
    def depth(self) -> int:
        """How many of the best results this page needs."""
        return self.offset + (_PAGE if self.k is None else self.k)

    @property
    def first(self) -> int:
        """How many of the best results all pages of this search share."""
        page = _PAGE if self.k is None else self.k
        return page if self.rerank is None else max(self.rerank_top, page)

    @property
    def page(self) -> slice:
        """The slice of the list that this page shows."""
        everything = self.k is None and self.min_score is not None
        return slice(self.offset, None if everything else self.depth)

    def _check_threshold(self) -> None:
        if not np.isfinite(self.min_score or 0.0):
            fix = "pass a finite number"
            raise ConfigError("threshold is not a number", value=self.min_score, fix=fix)
        if self.words is not None or self.rerank is not None or self.method == "approximate":
            fix = "leave out the threshold, or the approximate index, words and rerank"
            raise ConfigError("a threshold needs exact search by vectors alone", fix=fix)

    def _check_reranking(self) -> None:
        if not self.text.strip():
            fix = "give text, or leave rerank out"
            raise ConfigError("a cross-encoder needs text", fix=fix)
        if self.rerank_top < 1:
            fix = "use at least 1"
            raise ConfigError("rerank_top is below 1", value=self.rerank_top, fix=fix)
        if self.depth > self.first:
            fix = f"rerank at least {self.depth:,} on every page (rerank_top), or leave rerank out"
            raise ConfigError("page lies beyond the reranked papers", value=self.offset, fix=fix)

    def _check_words(self) -> None:
        if not self.text.strip():
            raise ConfigError("BM25 needs text", fix="give text, or leave words out")
        share = self.words
        valid = share in ("rank", "tuned") or (isinstance(share, (int, float)) and 0 <= share <= 1)
        if not valid:
            fix = 'pass a share from 0 to 1, "rank", or "tuned"'
            raise ConfigError("not a valid BM25 share", value=share, fix=fix)
