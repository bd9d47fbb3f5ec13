"""Mine pair files in cached steps that are repeated only if their inputs changed.

A pair file is mined in blocks of groups, each a step too, so that a long mining run that was
interrupted resumes at its last block.

Shape legend: G groups.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.manifest import MinedCounts, PairEntry
from scimult.data.negatives import drawn_by_rule
from scimult.data.pairs import PairFile, positives_hash, write_pairs
from scimult.data.prepared import (
    ALIASES_FILE,
    CITATIONS_FILE,
    HELD_OUT_FILE,
    SHOWN_FILE,
    TRIPLES_FILE,
    PreparedData,
)
from scimult.data.ragged import Ragged, offsets_of
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import METADATA_FILE
from scimult.files import read_json, write_json
from scimult.preparation.mining.budget import chosen_groups, keys_below
from scimult.preparation.mining.config import MiningConfig, NeighbourConfig, RuleConfig
from scimult.preparation.mining.hashing import ALL_KEYS
from scimult.preparation.mining.pools import BlockMiner, Pools
from scimult.preparation.mining.ranked import neighbour_pairs
from scimult.preparation.mining.rules import RuleBuilder
from scimult.preparation.pair_columns import mapped
from scimult.preparation.steps import Steps
from scimult.progress import progress

VERSION = "6"
# Each block scans all citations, so blocks grow with the file, within limits.
GROUPS_PER_BLOCK, MOST_PER_BLOCK, FEWEST_BLOCKS = 1 << 17, 1 << 20, 64
PAIRS_FILE = "pairs.arrow"
COUNTS_FILE = "counts.json"
# Fields of a pair file's manifest entry that rules depend on.
_DESCRIBED = ("file", "source", "namespace", "part", "task", "split")
_TABLES = (METADATA_FILE, CITATIONS_FILE, SHOWN_FILE, TRIPLES_FILE)
_READ = (TEXTS_FILE, ALIASES_FILE, HELD_OUT_FILE, *_TABLES)


@dataclass(frozen=True)
class Shard:
    """Every ``count``-th block, starting with block ``index``."""

    index: int
    count: int


class MiningSteps:
    """Mines the pair files of a prepared folder, or reuses those mined from the same inputs.

    The folder has no neighbours of an earlier mining.
    """

    def __init__(
        self, data: PreparedData, config: MiningConfig, builder: RuleBuilder, steps: Steps
    ) -> None:
        self._data, self._config = data, config
        self._builder, self._steps = builder, steps
        self._inputs = {"version": VERSION, "data": data_state(data), "seed": config.seed}

    def below(self, entry: PairEntry) -> int:
        """Return the bound below which the keys of a file's mined queries are."""
        # Neighbours join the manifest after this object was made.
        below = keys_below(self._data.manifest.pairs, self._config.max_groups)
        return below.get(entry.file, ALL_KEYS)

    def neighbours(self, entry: PairEntry, config: NeighbourConfig) -> Path:
        """Return a pair file with the neighbours of another file's queries (SciNCL)."""

        def make(folder: Path) -> None:
            window = self._builder.citation_window(entry.namespace, range(*config.ranks))
            component_C = self._builder.citation_components(entry.namespace)
            # A neighbour is one in both directions: it must not be trained in the other.
            barred = self._data.held_out() if entry.split == "train" else np.empty(0, np.int64)
            pairs = neighbour_pairs(self._data.open_pairs(entry), window, component_C, barred)
            write_pairs(folder / PAIRS_FILE, pairs)

        inputs = {**self._inputs, "of": entry.file, **self._embedding(config)}
        name = f"neighbours.{Path(entry.file).stem}"
        return self._steps.run(name, inputs, make).folder / PAIRS_FILE

    def mine(self, entry: PairEntry, rules: Sequence[RuleConfig]) -> tuple[Path, MinedCounts]:
        """Return a pair file with its negatives, and their counts for the manifest."""
        shares = [rule.share for rule in rules if rule.share is not None]
        name, blocks = self._blocks(entry)

        def make(folder: Path) -> None:
            pairs, finished = self.mine_blocks(entry, rules)
            pools = _concatenated(finished, len(pairs), folder)
            mined = replace(
                pairs,
                negatives=pools.negatives,
                rules=tuple(pools.counts),
                found_by=pools.found_by,
                shares=tuple(shares) if pools.counts else (),  # without pairs there are no rules
            )
            if self.below(entry) < ALL_KEYS:
                mined = chosen_groups(mined, self._config.seed, self.below(entry))
            write_pairs(folder / PAIRS_FILE, mined)
            counts = MinedCounts(
                with_negatives=int((mined.negatives.lengths > 0).sum()),
                negatives=len(mined.negatives.values),
                found=pools.counts,
                drawn=drawn_by_rule(mined),
            )
            write_json(folder / COUNTS_FILE, counts.model_dump())

        inputs = {**self._inputs_of(entry, rules), "shares": shares}
        step = self._steps.run(name, inputs, make)
        shutil.rmtree(blocks.folder, ignore_errors=True)
        return step.folder / PAIRS_FILE, MinedCounts(**read_json(step.folder / COUNTS_FILE))

    def mine_blocks(
        self, entry: PairEntry, rules: Sequence[RuleConfig], shard: Shard | None = None
    ) -> tuple[PairFile, list[Path]]:
        """Mine the blocks of a pair file, or of a shard, that are not cached; return both.

        The blocks are returned as folders, which ``mine`` finds finished.
        """
        blocks, below = self._blocks(entry)[1], self.below(entry)
        inputs, pairs = self._inputs_of(entry, rules), self._data.open_pairs(entry)
        # Rules are built when the first block needs them.
        miner = cache(lambda: self._builder.miner(pairs, rules, below))
        part = len(pairs) * below // ALL_KEYS // FEWEST_BLOCKS
        mined = min(max(GROUPS_PER_BLOCK, 1 << part.bit_length()), MOST_PER_BLOCK)
        # Groups of a block, including those that are not chosen.
        size = mined * ALL_KEYS // max(below, 1)
        starts = range(0, max(len(pairs), 1), size)
        folders = []
        for number, start in enumerate(progress(starts, pairs.name, unit="block")):
            if shard is not None and number % shard.count != shard.index:
                continue
            groups = [start, min(start + size, len(pairs))]

            def make(folder: Path, groups: Sequence[int] = groups) -> None:
                mine_block(miner(), groups[0], groups[1], folder)

            step = blocks.run(str(start), {**inputs, "groups": groups}, make, quiet=True)
            folders.append(step.folder)
        return pairs, folders

    def _blocks(self, entry: PairEntry) -> tuple[str, Steps]:
        """Return the step name of a pair file, and the cache of its blocks, compared by content."""
        name = f"mined.{Path(entry.file).stem}"
        return name, Steps(self._steps.folder / f"{name}.blocks", verify=True)

    def _inputs_of(self, entry: PairEntry, rules: Sequence[RuleConfig]) -> dict[str, Any]:
        config = self._config
        return {
            **self._inputs,
            "of": entry.file,
            "rules": [self._builder.identity(rule, entry) for rule in rules],
            "below": self.below(entry),
            "max_negatives": config.max_negatives,
            "max_neighbours": config.max_neighbours,
            "neighbours": [self._embedding(neighbours) for neighbours in config.neighbours],
        }

    def _embedding(self, neighbours: NeighbourConfig) -> dict[str, Any]:
        sizes = self._config.embedding.model_dump(mode="json")
        described: dict[str, Any] = {"source": neighbours.source, "ranks": list(neighbours.ranks)}
        entries, search = self._data.manifest.pairs, self._config.search.dense
        space = next(entry.namespace for entry in entries if entry.source == neighbours.source)
        # An exact search has no settings, and keeps the steps of versions that named none.
        if len(self._data.papers(space)) >= search.exact_below:
            described["search"] = search.model_dump(mode="json")
        return {**described, "embedding": sizes}


def mine_block(miner: BlockMiner, start: int, stop: int, folder: Path) -> None:
    """Mine the groups from ``start`` to ``stop`` and write their pools."""
    pools = miner.mine(start, stop)
    np.save(folder / "values.npy", pools.negatives.values)
    np.save(folder / "lengths.npy", pools.negatives.lengths)
    np.save(folder / "found_by.npy", pools.found_by)
    write_json(folder / COUNTS_FILE, pools.counts)


def _concatenated(folders: Sequence[Path], groups: int, scratch: Path) -> Pools:
    """Concatenate the blocks' pools into memory-mapped files."""
    lengths = np.concatenate([np.load(folder / "lengths.npy") for folder in folders])
    assert len(lengths) == groups, "blocks have other groups"
    offsets = offsets_of(lengths)
    arrays = (
        tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("values", "found_by"))
        for folder in folders
    )
    values, found_by = mapped(arrays, scratch)
    assert len(values) == offsets[-1], "a block's values do not match its lengths"
    counts = [read_json(folder / COUNTS_FILE) for folder in folders]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    return Pools(Ragged(values, offsets), found_by, totals)


def data_state(data: PreparedData) -> str:
    """Return a hash of everything that rules read of a prepared folder; negatives are excluded."""
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
