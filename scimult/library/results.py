"""Search results: ids, scores and texts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from scimult.terminal import counted, shortened, visible
from scimult.types import Text

SCORES = {"dot": "dot product", "cosine": "cosine", "l2": "minus L2 distance"}
"""Name of each similarity's score; larger is closer for all."""
_OWN = ("rank", "score", "percentile")
_TITLE_CHARACTERS = 72
_MOST_HITS = 20


@dataclass(frozen=True)
class Hit:
    """One result of a search.

    Attributes
    ----------
    rank : int
        From 1, over all pages.
    score : float
        See ``Hits.score``.
    id : str
        Of the paper.
    text : Text
        Its title and abstract.
    columns : mapping
        The library's other columns.
    percentile : float or None
        Percentage of the library's papers that score lower for this query, estimated on 10,000.
    """

    rank: int
    score: float
    id: str
    text: Text
    columns: Mapping[str, Any] = field(default_factory=dict)
    percentile: float | None = None

    @property
    def title(self) -> str:
        """Title of the paper."""
        return self.text.title

    @property
    def abstract(self) -> str:
        """Abstract of the paper."""
        return self.text.body

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the abstract, for a table or JSON.

        A column called ``rank``, ``score`` or ``percentile`` is ``rank_``, ``score_`` or
        ``percentile_`` here.
        """
        row = {"rank": self.rank, "score": round(self.score, 4)}
        if self.percentile is not None:
            row["percentile"] = round(self.percentile, 2)
        columns = {f"{n}_" if n in _OWN else n: value for n, value in self.columns.items()}
        return {**row, "id": self.id, "title": self.title, **columns}

    def __repr__(self) -> str:
        return f"Hit({self.rank}, {self.score:.4f}, {self.id!r}, {self.title!r})"


class Hits(Sequence[Hit]):
    """Results of a search, best first; printing shows a table.

    Parameters
    ----------
    hits : sequence of Hit
        The papers.
    score : str
        Kind of score: a similarity, or how several lists were combined.
    exact : bool
        Whether every paper was compared, not only those that an approximate index chose.
    """

    def __init__(self, hits: Sequence[Hit], score: str, exact: bool = True) -> None:
        self._hits, self.score, self.exact = list(hits), score, exact

    @property
    def ids(self) -> list[str]:
        """Ids of the papers."""
        return [hit.id for hit in self]

    @property
    def scores(self) -> list[float]:
        """Scores of the papers."""
        return [hit.score for hit in self]

    @property
    def texts(self) -> list[Text]:
        """Titles and abstracts of the papers."""
        return [hit.text for hit in self]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return one row per paper, for pandas or JSON."""
        return [hit.as_dict() for hit in self]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    @overload
    def __getitem__(self, index: int) -> Hit: ...

    @overload
    def __getitem__(self, index: slice) -> Hits: ...

    def __getitem__(self, index: int | slice) -> Hit | Hits:
        if isinstance(index, slice):
            return Hits(self._hits[index], self.score, self.exact)
        return self._hits[index]

    def __repr__(self) -> str:
        how = "" if self.exact else ", approximate"
        head = f"{counted(len(self), 'paper')} by {self.score}{how}"
        if not self._hits:
            return head
        width = max(len(visible(hit.id)) for hit in self._hits[:_MOST_HITS])
        lines = [
            f"{hit.rank:>4}  {hit.score:>8.4f}  {visible(hit.id):<{width}}  {_cut(hit.title)}"
            for hit in self._hits[:_MOST_HITS]
        ]
        more = [f"      … and {len(self) - _MOST_HITS} more"] if len(self) > _MOST_HITS else []
        return "\n".join([head, *lines, *more])


@dataclass(frozen=True)
class Tagged:
    """A paper and its best labels; a label's name is its ``Hit.title``."""

    id: str
    title: str
    labels: Hits

    def __repr__(self) -> str:
        named = ", ".join(f"{hit.title} {hit.score:.2f}" for hit in self.labels)
        return f"Tagged({self.id!r}, {_cut(self.title)!r}: {named})"


def _cut(title: str) -> str:
    return shortened(visible(title), _TITLE_CHARACTERS)
