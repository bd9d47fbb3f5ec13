"""Fills the pair files of a prepared folder with hard negatives."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scimult.data.pairs import PairFile, pair_file_name, read_pairs, write_pairs
from scimult.data.prepared import PreparedData, write_manifest
from scimult.data.ragged import Ragged
from scimult.data.self_supervision import VIEWS_PART
from scimult.errors import DataError, UnknownNameError
from scimult.files import atomic_file, atomic_folder, link_or_copy
from scimult.mining.config import MiningConfig, NeighbourConfig, RuleConfig
from scimult.mining.neighbours import neighbour_pairs
from scimult.mining.pools import mine_pools
from scimult.mining.rules import NEIGHBOURS, OpenEncoder, RuleBuilder
from scimult.progress import note

Entry = dict[str, Any]


def mine(folder: Path, config: MiningConfig, open_encoder: OpenEncoder | None = None) -> None:
    """Mine every pair file of a prepared folder, in place; the manifest is written last.

    Groups without a hard negative are kept with an empty list and counted in the manifest.

    Parameters
    ----------
    folder : Path
        A prepared folder that nobody else reads: see ``mine_again``.
    config : MiningConfig
        Rules, counts and bands.
    open_encoder : callable, optional
        Opens the model of a ``dense`` rule.

    Raises
    ------
    ConfigError, UnknownNameError
        If the configuration names a source that is not there, or a model cannot be opened.
    DataError
        If the folder is not a prepared one, or a window holds no pair at all.
    StorageError
        If the disk is full.
    """
    data = PreparedData.open(folder)
    _drop_neighbours(data)
    _check_sources(config, data)
    with TemporaryDirectory(prefix=".mining.", dir=folder) as scratch:
        builder = RuleBuilder(data, config, Path(scratch), open_encoder)
        for neighbours in config.neighbours:
            _add_neighbours(data, neighbours, builder)
        # The builder asks for known positives from here on: neighbours are among them.
        for entry in data.manifest["pairs"]:
            _mine_file(data, entry, _rules(config, entry), builder, config)
    manifest = {**data.manifest, "mining": config.model_dump(mode="json")}
    write_manifest(folder, manifest)


def mine_again(folder: Path, config: MiningConfig, open_encoder: OpenEncoder | None = None) -> None:
    """Replace a prepared folder by one that is mined with ``config``; texts and tokens stay.

    Raises
    ------
    ConfigError, UnknownNameError, DataError, StorageError
        See ``mine``; the old folder is then still there, unchanged.
    """
    PreparedData.open(folder)
    with atomic_folder(folder) as temporary:
        shutil.copytree(folder, temporary, copy_function=link_or_copy, dirs_exist_ok=True)
        mine(temporary, config, open_encoder)


def _mine_file(
    data: PreparedData,
    entry: Entry,
    rules: list[RuleConfig],
    builder: RuleBuilder,
    config: MiningConfig,
) -> None:
    """Mine one pair file and count what was found in its manifest entry."""
    path = data.folder / entry["file"]
    pairs = read_pairs(path)
    negatives, found = Ragged.empty(len(pairs)), dict[str, int]()
    if rules and len(pairs):
        negatives, found = mine_pools(
            pairs,
            builder.ingredients(pairs, entry, rules),
            builder.known(pairs.task, entry["part"]),
            limit=config.max_negatives,
            seed=config.seed,
        )
    with atomic_file(path) as temporary:
        write_pairs(temporary, replace(pairs, negatives=negatives))
    entry["with_negatives"] = int((negatives.lengths > 0).sum())
    entry["negatives"] = len(negatives.values)
    entry["found"] = found
    for name, count in found.items():
        if len(pairs) and not count:
            note(f"{pairs.name} ({pairs.split}): rule {name} found no negative")


def _rules(config: MiningConfig, entry: Entry) -> list[RuleConfig]:
    if entry["part"] == VIEWS_PART:
        return []
    if entry["part"] != NEIGHBOURS:
        return config.rules(entry["source"], entry["part"])
    return next(
        list(chosen.negatives) for chosen in config.neighbours if chosen.source == entry["from"]
    )


def _add_neighbours(data: PreparedData, chosen: NeighbourConfig, builder: RuleBuilder) -> None:
    """Write the neighbour pairs of a source and enter them in the manifest."""
    total = 0
    for entry in list(data.manifest["pairs"]):
        if (entry["source"], entry["part"]) != (chosen.source, "citations"):
            continue
        window = builder.citation_window(entry["namespace"], range(*chosen.ranks))
        pairs = neighbour_pairs(read_pairs(data.folder / entry["file"]), window)
        if len(pairs):
            data.manifest["pairs"].append(_write_neighbours(data.folder, pairs, entry))
        total += len(pairs)
    if not total:
        fix = "choose lower ranks: the window must lie within the papers that have a citation"
        raise DataError(
            f"no paper of source {chosen.source!r} has a neighbour in mining.neighbours.ranks",
            value=list(chosen.ranks),
            fix=fix,
        )


def _write_neighbours(folder: Path, pairs: PairFile, citations: Entry) -> Entry:
    name = pair_file_name(pairs.source, pairs.task, pairs.split)
    with atomic_file(folder / name) as temporary:
        write_pairs(temporary, pairs)
    return {
        "file": name,
        "source": pairs.source,
        "namespace": citations["namespace"],
        "part": NEIGHBOURS,
        "from": citations["source"],
        "task": pairs.task,
        "split": pairs.split,
        "queries": len(pairs),
        "groups": len(pairs),
        "pairs": len(pairs.positives.values),
        "unsampled": 0,
    }


def _drop_neighbours(data: PreparedData) -> None:
    """Forget neighbour pairs of an earlier mining."""
    entries: list[Entry] = data.manifest["pairs"]
    for entry in entries:
        if entry["part"] == NEIGHBOURS:
            (data.folder / entry["file"]).unlink()
    data.manifest["pairs"] = [entry for entry in entries if entry["part"] != NEIGHBOURS]


def _check_sources(config: MiningConfig, data: PreparedData) -> None:
    """Meet a wrong name before work starts."""
    parts: dict[str, set[str]] = {}
    for entry in data.manifest["pairs"]:
        parts.setdefault(entry["source"], set()).add(entry["part"])
    for name in config.sources:
        if name not in parts:
            raise UnknownNameError("source in mining.sources", name, parts)
    for chosen in config.neighbours:
        if "citations" not in parts.get(chosen.source, ()):
            cited = [name for name, found in parts.items() if "citations" in found]
            raise UnknownNameError("source in mining.neighbours", chosen.source, cited)
