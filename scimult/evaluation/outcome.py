"""What a protocol found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scimult.evaluation.metrics import Scores
from scimult.evaluation.protocols import MACRO_F1
from scimult.retrieval.runs import Ranking

WEIGHT = "weight"
"""Column of the scores per query that says how much a query counts, where it is not 1."""


@dataclass(frozen=True)
class Outcome:
    """Scores of one system on one data set.

    Attributes
    ----------
    scores : dict
        Metric to its value over all queries.
    per_query : dict
        Column name to one value per query: every metric that is a mean over queries, ``weight``
        where they do not count the same, and where labels or numbers are predicted what was given
        and predicted.
    rankings : dict
        Name of a list (empty, or ``+names``) to the ranked lists.
    details : dict
        What a reader should know beside the scores: the C that was chosen, scores by group.
    """

    scores: dict[str, float]
    per_query: dict[str, list[float] | list[str]]
    rankings: dict[str, Ranking] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Scores], metrics: Sequence[str], **found: Any
    ) -> Outcome:
        """Return the outcome whose scores are means of these columns, a value per query each."""
        return cls(
            scores={name: float(columns[name].mean()) for name in metrics},
            per_query={name: columns[name].tolist() for name in metrics},
            **found,
        )

    @property
    def resampled(self) -> list[str]:
        """Metrics that scores per query can be resampled for."""
        known = {*self.per_query, *([MACRO_F1] if "correct" in self.per_query else [])}
        return [name for name in self.scores if name in known]
