"""The protocols, one row each (layouts, metrics, function), and the outcome they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from scimult.evaluation.benchmark import Benchmark
    from scimult.evaluation.metrics import Scores
    from scimult.retrieval.runs import Ranking


MACRO_F1 = "macro_f1"
KENDALL_TAU = "kendall_tau"
WITH_NAMES = "+names"
"""Suffix of metrics computed after label-name matching."""
SHOT = "+{}shot"
"""Suffix of a few-shot version's metrics."""


@dataclass(frozen=True)
class Protocol:
    """One way to score a system on a data set.

    Attributes
    ----------
    module : {"rankings", "probes", "clustering"}
        Module of ``scimult.evaluation`` with a function of the protocol's name, which takes the
        benchmark, the data, and a ranker or, outside ``rankings``, embeddings. It is imported at
        the first call: linear models and clustering take a second to import.
    layouts : tuple of str
        File layouts that it can read.
    metrics : tuple of str
        What it computes; empty: any ranking metric.
    labels : bool
        Whether candidates are labels.
    rules : int
        Increase it when the same vectors get other scores; see `rules_of`.
    """

    module: Literal["rankings", "probes", "clustering"]
    layouts: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    labels: bool = False
    rules: int = 1

    @property
    def ranks(self) -> bool:
        """Whether it scores a ranker, not embeddings."""
        return self.module == "rankings"

    @property
    def fits(self) -> bool:
        """Whether it fits a linear model, which the benchmark's ``probe`` describes."""
        return self.module == "probes"


_PAPERS = ("native", "scirepeval", "scirepeval_training")
PROTOCOLS: dict[str, Protocol] = {
    "classification_fine": Protocol("rankings", ("native", "scimult"), labels=True),
    "classification_coarse": Protocol("rankings", ("native", "scimult"), (MACRO_F1,), labels=True),
    "classification_linear": Protocol(
        "probes", (*_PAPERS, "scidocs"), (MACRO_F1, "f1", "accuracy"), rules=2
    ),
    "regression_linear": Protocol("probes", _PAPERS, (KENDALL_TAU,), rules=2),
    "link_retrieval": Protocol("rankings", ("native", "scimult")),
    "rerank": Protocol(
        "rankings", (*_PAPERS, "scidocs", "scimult", "mdcr", "csfcube", "doris_mae")
    ),
    "search": Protocol("rankings", ("native", "scimult", "litsearch")),
    "reviewer_matching": Protocol(
        "rankings", ("scirepeval",), ("mean_precision", "precision_hard", "precision_soft")
    ),
    "author_clustering": Protocol(
        "clustering", ("s2and",), ("b_cubed_f1", "b_cubed_precision", "b_cubed_recall")
    ),
    "recommendation": Protocol("rankings", ("scidocs",), ("weighted_ndcg", "weighted_precision@1")),
}
_TEXTS = {"doris_mae": 1, "iclr2022": 1}
"""How often the texts that are made of the same files have changed, by layout or folder."""
OWN_METRICS = {name for protocol in PROTOCOLS.values() for name in protocol.metrics}
"""Metrics that protocols compute themselves, other than ranking metrics."""


def function_of(name: str) -> Callable[[Any, Any, Any], Outcome]:
    """Return a protocol's function of a benchmark, its data, and a ranker or embeddings."""
    module = import_module(f"scimult.evaluation.{PROTOCOLS[name].module}")
    function: Callable[[Any, Any, Any], Outcome] = getattr(module, name)
    return function


def rules_of(benchmark: Benchmark) -> int:
    """Return the number of the rules by which a set is read and scored.

    Scores by rules of an earlier version are neither kept nor compared with those by today's.
    """
    names = {benchmark.format, benchmark.folder}
    return PROTOCOLS[benchmark.protocol].rules + sum(_TEXTS.get(name, 0) for name in names)


WEIGHT = "weight"
"""Column of the per-query scores with the queries' weights, where they differ from 1."""


@dataclass(frozen=True)
class Outcome:
    """Scores of one system on one data set.

    Attributes
    ----------
    scores : dict
        Metric to its value over all queries.
    per_query : dict
        Column name to one value per query: every metric that is a mean over queries, ``weight``
        where queries do not count the same, and the gold and predicted labels or numbers where
        such are predicted.
    rankings : dict
        Kind of list (empty, or ``+names``) to the ranked lists.
    details : dict
        Further findings for readers: the chosen C, scores by group.
    """

    scores: dict[str, float]
    per_query: dict[str, list[float] | list[str]]
    rankings: dict[str, Ranking] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Scores], weights_Q: Scores | None = None, **others: Any
    ) -> Outcome:
        """Return the outcome whose scores are the means of per-query columns, maybe weighted."""
        listed = {**columns} if weights_Q is None else {**columns, WEIGHT: weights_Q}
        return cls(
            scores={
                name: float((column if weights_Q is None else weights_Q * column).mean())
                for name, column in columns.items()
            },
            per_query={name: column.tolist() for name, column in listed.items()},
            **others,
        )

    @property
    def resampled(self) -> list[str]:
        """Metrics whose per-query scores can be resampled."""
        known = {*self.per_query, *([MACRO_F1] if "correct" in self.per_query else [])}
        return [name for name in self.scores if name in known]
