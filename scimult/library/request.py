"""What a search asks for; contradictions are refused before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from scimult.errors import ConfigError, one_of
from scimult.library.filters import Where
from scimult.types import FloatArray

if TYPE_CHECKING:
    from scimult.retrieval.shards import Space

_PAGE = 10
Method = Literal["auto", "exact", "approximate"]


@dataclass(frozen=True)
class Request:
    """One search.

    Parameters
    ----------
    text : str
        What to look for, in words.
    ids : sequence of str
        Papers of the library to start from; they are not among the results. With several, or with
        ``text`` beside them, the mean of their vectors is what is searched for, each of length 1
        first where the similarity is cosine.
    vector : array, optional
        An own vector, shape ``(D,)``, in place of text and ids.
    space : Space, optional
        What made ``vector``; refused if that is not what made the library.
    k : int, optional
        Results of a page: 10, or with ``min_score`` all.
    offset : int
        Results to pass over first: ``k=10, offset=20`` is the third page.
    min_score : float, optional
        Everything with this score or a higher one, in place of the best ``k``.
    where : str or mapping, optional
        A filter on the columns; see :mod:`scimult.library.filters`.
    only, exclude : sequence of str
        Ids that alone may be, or may not be, among the results.
    method : {"auto", "exact", "approximate"}
        ``auto`` uses the approximate index where there is one and it pays.
    words : float, optional
        Share of BM25 beside the vectors: both lists' scores from 0 to 1, weighted; 0.5 for both
        alike. "rank" adds reciprocal ranks instead.
    rerank : str, optional
        A cross-encoder of sentence-transformers that orders the first ``rerank_top`` anew.
    percentile : bool
        Whether each result says how much of the library scores lower.
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
        given = bool(self.text.strip()) or bool(self.ids)
        if given == (self.vector is not None):
            fix = "give text, ids of papers, or a vector"
            problem = "both a vector and texts to search for" if given else "nothing to search for"
            raise ConfigError(problem, fix=fix)
        page = (1 if self.k is None else self.k, self.offset)
        if not all(hasattr(n, "__index__") for n in page) or page[0] < 1 or page[1] < 0:
            fix = "ask for one result or more, and pass over 0 or more"
            raise ConfigError("no such page", value={"k": self.k, "offset": self.offset}, fix=fix)
        if self.min_score is not None:
            self._check_threshold()
        if self.words is not None:
            self._check_words()
        if self.rerank is not None and not self.text.strip():
            raise ConfigError("a cross-encoder reads words", fix="give text, or leave rerank out")
        if self.vector is not None and np.ndim(self.vector) != 1:
            fix = "pass one vector, shape (D,)"
            raise ConfigError("no vector", value=f"shape {np.shape(self.vector)}", fix=fix)

    @property
    def depth(self) -> int:
        """How long a list of the best must be for this page."""
        return self.offset + (_PAGE if self.k is None else self.k)

    @property
    def page(self) -> slice:
        """Which places of the list are shown."""
        everything = self.k is None and self.min_score is not None
        return slice(self.offset, None if everything else self.depth)

    def _check_threshold(self) -> None:
        if not np.isfinite(self.min_score or 0.0):
            raise ConfigError("threshold is no number", value=self.min_score, fix="pass a score")
        if self.words is not None or self.rerank is not None or self.method == "approximate":
            fix = "leave out the threshold, or the approximate index, words and rerank"
            raise ConfigError("all above a score are found by vectors, exactly", fix=fix)

    def _check_words(self) -> None:
        if not self.text.strip():
            raise ConfigError("BM25 reads words", fix="give text, or leave words out")
        share = self.words
        sound = share in ("rank", "tuned") or (isinstance(share, (int, float)) and 0 <= share <= 1)
        if not sound:
            fix = 'pass a share from 0 to 1, "rank", or "tuned"'
            raise ConfigError("no share of BM25", value=share, fix=fix)
