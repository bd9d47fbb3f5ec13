"""Mined pair files as steps: kept when they are finished, made again only if their inputs changed.

A pair file is mined in blocks of groups, each a step too, so that a mining of hours that was
interrupted goes on at its last block.

Shape legend: G groups.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.manifest import MinedCounts, PairEntry
from scimult.data.negatives import drawn_by_rule
from scimult.data.pairs import PairFile, positives_hash, write_pairs
from scimult.data.prepared import ALIASES_FILE, TRIPLES_FILE, PreparedData
from scimult.data.ragged import Ragged, offsets_of
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.files import read_json, write_json
from scimult.preparation.metadata import FILE_NAME as METADATA_FILE
from scimult.preparation.mining.config import MiningConfig, NeighbourConfig, RuleConfig
from scimult.preparation.mining.neighbours import neighbour_pairs
from scimult.preparation.mining.pools import Groups, Ingredient, Pools, mine_pools
from scimult.preparation.mining.rules import RuleBuilder
from scimult.preparation.mining.sampling import Membership
from scimult.preparation.steps import Steps

VERSION = "2"
GROUPS_PER_BLOCK = 1 << 16
PAIRS_FILE = "pairs.arrow"
COUNTS_FILE = "counts.json"
# Of the manifest's entry of a pair file: what rules look at.
_DESCRIBED = ("file", "source", "namespace", "part", "task", "split")
_READ = (TEXTS_FILE, METADATA_FILE, ALIASES_FILE, "citations.arrow", "shown.arrow", TRIPLES_FILE)


class MiningSteps:
    """Makes the pair files of a prepared folder, or finds them made from the same inputs.

    Parameters
    ----------
    data : PreparedData
        The folder, without neighbours of an earlier mining.
    config : MiningConfig
        Limits, seed, sizes.
    builder : RuleBuilder
        Builds what is needed of the rules, when it is needed.
    steps : Steps
        Where finished files are.
    """

    def __init__(
        self, data: PreparedData, config: MiningConfig, builder: RuleBuilder, steps: Steps
    ) -> None:
        self._data, self._config = data, config
        self._builder, self._steps = builder, steps
        self._inputs = {"version": VERSION, "data": data_state(data), "seed": config.seed}

    def neighbours(self, entry: PairEntry, chosen: NeighbourConfig) -> Path:
        """Return a pair file with the neighbours of the queries of another (SciNCL).

        Raises
        ------
        DataError
            If the namespace has no citations.
        """

        def make(folder: Path) -> None:
            window = self._builder.citation_window(entry.namespace, range(*chosen.ranks))
            pairs = neighbour_pairs(self._data.open_pairs(entry), window)
            write_pairs(folder / PAIRS_FILE, pairs)

        inputs = {**self._inputs, "of": entry.file, **self._embedding(chosen)}
        name = f"neighbours.{Path(entry.file).stem}"
        return self._steps.run(name, inputs, make).folder / PAIRS_FILE

    def mine(self, entry: PairEntry, rules: Sequence[RuleConfig]) -> tuple[Path, MinedCounts]:
        """Return a pair file with its negatives, and what the manifest says of them.

        Raises
        ------
        ConfigError, CheckpointError
            If a model cannot be opened.
        """
        config = self._config
        inputs = {
            **self._inputs,
            "of": entry.file,
            "rules": [self._builder.identity(rule) for rule in rules],
            "max_negatives": config.max_negatives,
            "max_neighbours": config.max_neighbours,
            "neighbours": [self._embedding(chosen) for chosen in config.neighbours],
        }
        shares = [rule.share for rule in rules if rule.share is not None]
        name = f"mined.{Path(entry.file).stem}"
        blocks = Steps(self._steps.folder / f"{name}.blocks")

        def make(folder: Path) -> None:
            pairs = self._data.open_pairs(entry)
            miner = _FileMiner(pairs, rules, self._builder, config)
            pools = _mine_blocks(miner, blocks, inputs)
            _write_mined(folder, pairs, pools, shares)

        step = self._steps.run(name, {**inputs, "shares": shares}, make)
        shutil.rmtree(blocks.folder, ignore_errors=True)
        return step.folder / PAIRS_FILE, MinedCounts(**read_json(step.folder / COUNTS_FILE))

    def _embedding(self, chosen: NeighbourConfig) -> dict[str, Any]:
        sizes = self._config.embedding.model_dump(mode="json")
        return {"source": chosen.source, "ranks": list(chosen.ranks), "embedding": sizes}


class _FileMiner:
    """What mining a block of a pair file takes; rules are built when the first block needs them."""

    def __init__(
        self,
        pairs: PairFile,
        rules: Sequence[RuleConfig],
        builder: RuleBuilder,
        config: MiningConfig,
    ) -> None:
        self.pairs, self._rules = pairs, rules
        self._builder, self._config = builder, config
        self._groups = Groups.of(pairs)

    @cached_property
    def _ingredients(self) -> list[Ingredient]:
        if not len(self.pairs):
            return []
        return self._builder.ingredients(self.pairs, self._rules)

    @cached_property
    def _is_known(self) -> Membership:
        return Membership(self._builder.known(self.pairs.task, self.pairs.part))

    def mine(self, start: int, stop: int, folder: Path) -> None:
        """Mine the groups from ``start`` to ``stop`` and write what was found."""
        pools = mine_pools(
            self._groups.take(np.arange(start, stop, dtype=np.int64)),
            self._ingredients,
            self._is_known,
            limit=self._config.max_negatives,
            seed=self._config.seed,
            what=f"{self.pairs.name} to {stop:,} of {len(self.pairs):,}",
        )
        np.save(folder / "values.npy", pools.negatives.values)
        np.save(folder / "lengths.npy", pools.negatives.lengths)
        np.save(folder / "found_by.npy", pools.found_by)
        write_json(folder / COUNTS_FILE, pools.found)


def _mine_blocks(miner: _FileMiner, blocks: Steps, inputs: dict[str, Any]) -> Pools:
    """Mine block after block, or find them mined, and put them together."""
    folders = []
    for start in range(0, max(len(miner.pairs), 1), GROUPS_PER_BLOCK):
        stop = min(start + GROUPS_PER_BLOCK, len(miner.pairs))
        described = {**inputs, "groups": [start, stop]}

        def make(folder: Path, start: int = start, stop: int = stop) -> None:
            miner.mine(start, stop, folder)

        folders.append(blocks.run(str(start), described, make, quiet=True).folder)
    values, lengths, found_by = (
        np.concatenate([np.load(folder / f"{name}.npy", mmap_mode="r") for folder in folders])
        for name in ("values", "lengths", "found_by")
    )
    counts = [read_json(folder / COUNTS_FILE) for folder in folders]
    found = {name: sum(count[name] for count in counts) for name in counts[0]}
    return Pools(Ragged(values, offsets_of(lengths)), found_by, found)


def _write_mined(folder: Path, pairs: PairFile, pools: Pools, shares: Sequence[float]) -> None:
    negatives = pools.negatives
    mined = replace(
        pairs,
        negatives=negatives,
        rules=tuple(pools.found),
        found_by=pools.found_by,
        shares=tuple(shares),
    )
    write_pairs(folder / PAIRS_FILE, mined)
    counts = MinedCounts(
        with_negatives=int((negatives.lengths > 0).sum()),
        negatives=len(negatives.values),
        found=pools.found,
        drawn=drawn_by_rule(mined),
    )
    write_json(folder / COUNTS_FILE, counts.model_dump())


def data_state(data: PreparedData) -> str:
    """Return a hash of all that rules may read of a prepared folder, negatives left aside."""
    manifest = data.manifest
    pairs = [
        [*(getattr(entry, name) for name in _DESCRIBED), positives_hash(data.open_pairs(entry))]
        for entry in manifest.pairs
    ]
    tree = {
        "files": {name: manifest.files[name].sha256 for name in _READ if name in manifest.files},
        "label_rows": manifest.label_rows,
        "pairs": pairs,
    }
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
