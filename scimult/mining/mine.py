"""Fills the pair files of a prepared folder with hard negatives."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scimult.config import StrictConfig
from scimult.data.metadata import Metadata
from scimult.data.pairs import PairFile, known_positives, read_pairs, write_pairs
from scimult.data.prepare_config import Part
from scimult.data.prepared import PreparedData, write_manifest
from scimult.data.ragged import Ragged
from scimult.files import atomic_file, atomic_folder, link_or_copy
from scimult.mining.clicks import shown_not_positive
from scimult.mining.graph import cited_by_cited
from scimult.mining.metadata import Links, Relation, labels_of_neighbours
from scimult.progress import progress
from scimult.types import IntArray

Positive = Annotated[int, Field(ge=1)]


class MiningConfig(StrictConfig):
    """Where hard negatives come from (SciMult, section 3.4) and how many are kept.

    Parameters
    ----------
    citations : list
        For paper-to-paper pairs: papers that the cited paper cites.
    labels : list
        For paper-to-label pairs: labels of papers that the query paper cites or shares an
        author or its venue with.
    links, queries : list
        For judged pairs of papers and query-to-paper pairs: papers shown and not clicked, or
        judged and not relevant.
    max_negatives : int
        Largest pool of a group. Training draws one of them per positive and epoch.
    max_neighbours : int
        Papers looked at per query, relation and author or venue.
    seed : int
        Decides what is kept of larger pools and neighbourhoods.
    """

    citations: list[Literal["cited_by_cited"]] = ["cited_by_cited"]
    labels: list[Literal["cited", "author", "venue"]] = ["cited", "author", "venue"]
    links: list[Literal["shown"]] = ["shown"]
    queries: list[Literal["shown"]] = ["shown"]
    max_negatives: Positive = 32
    max_neighbours: Positive = 64
    seed: Annotated[int, Field(ge=0)] = 0


def mine(folder: Path, config: MiningConfig) -> None:
    """Mine every pair file of a prepared folder, in place; the manifest is written last.

    Groups without a hard negative are kept with an empty list and counted in the manifest.

    Raises
    ------
    DataError
        If the folder is not a prepared one.
    StorageError
        If the disk is full.
    """
    data = PreparedData.open(folder)
    miner = _Miner(data, config)
    for entry in progress(data.manifest["pairs"], "hard negatives", unit="file"):
        pairs = read_pairs(folder / entry["file"])
        negatives = miner.negatives(pairs, entry["part"], entry["namespace"])
        with atomic_file(folder / entry["file"]) as temporary:
            write_pairs(temporary, replace(pairs, negatives=negatives))
        entry["with_negatives"] = int((negatives.lengths > 0).sum())
        entry["negatives"] = len(negatives.values)
    write_manifest(folder, {**data.manifest, "mining": config.model_dump(mode="json")})


def mine_again(folder: Path, config: MiningConfig) -> None:
    """Replace a prepared folder by one that is mined with ``config``; texts and tokens stay.

    Raises
    ------
    DataError
        If the folder is not a prepared one.
    StorageError
        If the disk is full; the old folder is then still there, unchanged.
    """
    PreparedData.open(folder)
    with atomic_folder(folder) as temporary:
        shutil.copytree(folder, temporary, copy_function=link_or_copy, dirs_exist_ok=True)
        mine(temporary, config)


class _Miner:
    """What the miners of one folder share: known positives of each task, and relations."""

    def __init__(self, data: PreparedData, config: MiningConfig) -> None:
        self._data = data
        self._config = config
        self._files = [*data.pairs("train"), *data.pairs("dev")]
        self._known: dict[str, Ragged] = {}

    def negatives(self, pairs: PairFile, part: Part, namespace: str) -> Ragged:
        """Return the hard negatives of each group of ``pairs``."""
        config = self._config
        if not getattr(config, part):
            return Ragged.empty(len(pairs))
        limits = {"limit": config.max_negatives, "seed": config.seed}
        known = self._known_positives(pairs.task)
        if part == "citations":
            return cited_by_cited(pairs.queries, pairs.positives, known, **limits)
        if part in ("links", "queries"):
            return shown_not_positive(pairs.queries, known, self._shown, **limits)
        return labels_of_neighbours(
            pairs.queries,
            self._relations,
            self._metadata.labels,
            range(*self._data.manifest["label_rows"][namespace]),
            max_neighbours=config.max_neighbours,
            **limits,
        )

    def _known_positives(self, task: str) -> Ragged:
        """Return the known positives of every text row under a task, over all sources."""
        if task not in self._known:
            known = known_positives([file for file in self._files if file.task == task])
            self._known[task] = known.by_row(len(self._data.texts))
        return self._known[task]

    @cached_property
    def _metadata(self) -> Metadata:
        return Metadata.open(self._data.folder, len(self._data.texts))

    @cached_property
    def _relations(self) -> list[Relation | Links]:
        """Return what makes two papers close, as configured."""
        found: list[Relation | Links] = []
        for name in self._config.labels:
            if name == "cited":
                edges = self._data.citations()
                found.append(Links(self._by_row(edges)))
            else:
                groups = self._metadata.authors if name == "author" else self._metadata.venues
                found.append(Relation.from_groups(groups))
        return found

    @cached_property
    def _shown(self) -> Ragged:
        return self._by_row(self._data.shown())

    def _by_row(self, pairs: IntArray) -> Ragged:
        return Ragged.from_pairs(pairs[:, 0], pairs[:, 1], len(self._data.texts))
