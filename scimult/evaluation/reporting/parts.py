"""The sections of one data set, built while its texts and lists are in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.reporting.curves import RecallCurves, recall_curves
from scimult.evaluation.reporting.labels import by_frequency
from scimult.evaluation.reporting.maps import Layout, PaperMap, can_map, paper_map, takes
from scimult.evaluation.reporting.sources import read_scored_set
from scimult.evaluation.reporting.wins import PairwiseWins, pairwise_wins
from scimult.evaluation.results import Result
from scimult.retrieval.embeddings import StoredEmbeddings
from scimult.table import Table


@dataclass(frozen=True)
class Options:
    """Settings of a report.

    Attributes
    ----------
    data : sequence of Path
        Folders of data sets, for texts; the first that has a set is read.
    baseline : str, optional
        The system that others are compared with; by default the oldest result.
    maps : mapping
        System to embeddings of the papers of a coarse classification set.
    layout : {"tsne", "umap"}
        Layout of the maps.
    examples : int
        Won and lost queries shown per data set and system.
    resamples, seed, confidence
        See `scimult.evaluation.comparison.Settings`.
    """

    data: Sequence[Path] = ()
    baseline: str | None = None
    maps: Mapping[str, StoredEmbeddings] = field(default_factory=dict)
    layout: Layout = "tsne"
    examples: int = 3
    resamples: int = 10_000
    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True)
class SetPart:
    """The sections of one data set, None or empty where impossible, and which inputs they had.

    ``has_lists`` means ranked lists of every system, ``has_shares`` that queries have no score of
    their own.
    """

    name: str
    protocol: str
    has_texts: bool
    has_lists: bool
    has_shares: bool
    curves: RecallCurves | None
    frequency: Table | None
    wins: list[PairwiseWins]
    maps: list[PaperMap]

    @property
    def is_fitted(self) -> bool:
        """Whether a linear model predicts, so that there are neither lists nor texts."""
        return PROTOCOLS[self.protocol].fits

    @property
    def is_ranked(self) -> bool:
        """Whether systems list candidates; coarse classification takes one label."""
        return not self.is_fitted and self.protocol != "classification_coarse"


def make_part(
    out: Path, results: Sequence[Result], name: str, baseline: str, options: Options
) -> SetPart:
    """Read one data set and build its sections.

    Raises
    ------
    DataError
        If a file is damaged, or the data differs from what was scored.
    """
    present = [result for result in results if name in result.sets]
    scored = read_scored_set(out, present, name, options.data)
    maps = [
        paper_map(scored, system, stored, options.seed, options.layout)
        for system, stored in options.maps.items()
        if can_map() and system in scored.tables and takes(scored, stored)
    ]
    return SetPart(
        name=name,
        protocol=scored.facts.protocol,
        has_texts=scored.dataset is not None,
        has_lists=scored.runs.keys() == scored.tables.keys(),
        has_shares=scored.has_shares,
        curves=recall_curves(scored, present),
        frequency=by_frequency(scored),
        wins=[] if scored.has_shares else pairwise_wins(scored, baseline, options.examples),
        maps=maps,
    )
