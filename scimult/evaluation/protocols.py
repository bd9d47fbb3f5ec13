"""The protocols, a row each: which layouts have its data, what it computes, which function does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from scimult.evaluation.outcome import Outcome

MACRO_F1 = "macro_f1"


@dataclass(frozen=True)
class Protocol:
    """One way to score a system on a data set.

    Attributes
    ----------
    module : str
        Module of ``scimult.evaluation`` that has a function of the protocol's name. It takes the
        benchmark, the data, and a ranker or embeddings; it is imported when it is first called,
        because linear models and clustering take a second to import.
    takes : {"ranker", "embeddings"}
        What of a system it scores.
    layouts : tuple of str
        Layouts of files that have its data.
    metrics : tuple of str
        What it computes; empty: any measure of ranked lists.
    fits : bool
        Whether it fits a linear model, which the benchmark's ``probe`` describes.
    labels : bool
        Whether candidates are labels.
    """

    module: str
    takes: Literal["ranker", "embeddings"]
    layouts: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    fits: bool = False
    labels: bool = False


PROTOCOLS: dict[str, Protocol] = {
    "classification_fine": Protocol("rankings", "ranker", ("native", "scimult"), labels=True),
    "classification_coarse": Protocol(
        "rankings", "ranker", ("native", "scimult"), (MACRO_F1,), labels=True
    ),
    "classification_linear": Protocol(
        "probes",
        "embeddings",
        ("native", "scirepeval", "scirepeval_training", "scidocs"),
        (MACRO_F1, "f1", "accuracy"),
        fits=True,
    ),
    "regression_linear": Protocol(
        "probes",
        "embeddings",
        ("native", "scirepeval", "scirepeval_training"),
        ("kendall_tau",),
        fits=True,
    ),
    "link_retrieval": Protocol("rankings", "ranker", ("native", "scimult")),
    "rerank": Protocol(
        "rankings",
        "ranker",
        (
            "native",
            "scirepeval",
            "scirepeval_training",
            "scidocs",
            "scimult",
            "mdcr",
            "csfcube",
            "doris_mae",
        ),
    ),
    "search": Protocol("rankings", "ranker", ("native", "scimult", "litsearch")),
    "reviewer_matching": Protocol(
        "reviewers",
        "ranker",
        ("scirepeval",),
        ("mean_precision", "precision_hard", "precision_soft"),
    ),
    "author_clustering": Protocol(
        "clustering",
        "embeddings",
        ("s2and",),
        ("b_cubed_f1", "b_cubed_precision", "b_cubed_recall"),
    ),
    "recommendation": Protocol(
        "rankings", "ranker", ("scidocs",), ("weighted_ndcg", "weighted_precision@1")
    ),
}
OWN_METRICS = {name for protocol in PROTOCOLS.values() for name in protocol.metrics}
"""What protocols compute that is no measure of ranked lists."""


def function_of(name: str) -> Callable[[Any, Any, Any], Outcome]:
    """Return the function of a protocol, of a benchmark, its data and what the protocol takes."""
    module = import_module(f"scimult.evaluation.{PROTOCOLS[name].module}")
    function: Callable[[Any, Any, Any], Outcome] = getattr(module, name)
    return function
