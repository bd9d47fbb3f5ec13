"""Fill the pair files of a prepared folder with hard negatives."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from scimult.data.manifest import MinedCounts, PairEntry
from scimult.data.pairs import read_pairs
from scimult.data.prepared import PREPARED, PreparedData
from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.files import atomic_folder, link_or_copy
from scimult.locks import scratch_folder
from scimult.preparation.mining.budget import FOLDER as WHOLE
from scimult.preparation.mining.budget import keep_whole, restore_whole
from scimult.preparation.mining.config import MiningConfig, NeighbourConfig, RuleConfig
from scimult.preparation.mining.dense import DenseWindows, OpenEncoder
from scimult.preparation.mining.engine import Engine, Limits, open_duckdb
from scimult.preparation.mining.hashing import ALL_KEYS
from scimult.preparation.mining.indexes import Indexes
from scimult.preparation.mining.memory import within
from scimult.preparation.mining.ranked import NEIGHBOURS_SUFFIX
from scimult.preparation.mining.rules import RuleBuilder
from scimult.preparation.mining.steps import MiningSteps, Shard
from scimult.preparation.steps import Steps
from scimult.progress import warn

# Largest difference between a rule's share and its draws that is not reported.
_TOLERANCE = 0.02


def mine(
    folder: Path,
    config: MiningConfig,
    open_encoder: OpenEncoder | None = None,
    steps: Steps | None = None,
    *,
    limits: Limits | None = None,
    engine: Engine | None = None,
) -> None:
    """Mine every pair file of a prepared folder, in place; the manifest is written last.

    Groups without a hard negative keep an empty list and are counted in the manifest. Nobody else
    may read the folder; otherwise use ``mine_again``. ``steps`` caches finished work for later
    runs.

    Raises
    ------
    ConfigError, UnknownNameError
        If the configuration names an unknown source, or a model cannot be opened.
    DataError
        If the folder is not a prepared folder, or a window contains no pair at all.
    """
    data = PreparedData.open(folder)
    restore_whole(data)
    _drop_neighbours(data)
    _check_sources(config, data)
    with _opened(data, config, folder, steps, open_encoder, limits, engine) as miner:
        for neighbours in config.neighbours:
            _add_neighbours(data, neighbours, miner)
        # After adding neighbours, which are known positives too.
        entries = data.manifest.pairs
        mined = [miner.mine(entry, _rules(config, entry)) for entry in entries]
        # After mining all, since known positives come from whole files.
        data.manifest.pairs = [
            _replace_mined(data, entry, path, counts, miner.below(entry) < ALL_KEYS)
            for entry, (path, counts) in zip(entries, mined, strict=True)
        ]
    for entry in data.manifest.pairs:
        _warn_of_shares(entry, _rules(config, entry))
    _warn_of_idle_rules(data.manifest.pairs)
    data.manifest.mining = config.model_dump(mode="json")
    unchanged = [
        name for name in data.manifest.files if not name.startswith(("pairs/", f"{WHOLE}/"))
    ]
    data.manifest.write(folder, unchanged)


def mine_again(
    folder: Path,
    config: MiningConfig,
    open_encoder: OpenEncoder | None = None,
    steps: Steps | None = None,
    *,
    limits: Limits | None = None,
    engine: Engine | None = None,
) -> None:
    """Replace a prepared folder by one mined with ``config``, as ``mine`` does; texts stay.

    Raises
    ------
    ConfigError, UnknownNameError, DataError, StorageError
        See ``mine``; the old folder then stays unchanged.
    """
    PreparedData.open(folder)
    with atomic_folder(folder, PREPARED) as temporary:
        shutil.copytree(folder, temporary, copy_function=link_or_copy, dirs_exist_ok=True)
        mine(temporary, config, open_encoder, steps, limits=limits, engine=engine)


def mine_shard(
    folder: Path,
    config: MiningConfig,
    shard: Shard,
    steps: Steps,
    open_encoder: OpenEncoder | None = None,
    *,
    limits: Limits | None = None,
) -> None:
    """Mine every n-th block of all pair files into ``steps``; nothing else changes.

    When processes that share ``steps``, on any machines, have mined all shards, ``mine_again``
    with the same configuration reuses the blocks whose checksums match, and mines the others.
    Neighbour pairs must precede all blocks: a configuration that adds them is a ConfigError.
    """
    if config.neighbours:
        fix = "mine a folder with neighbours as a whole"
        raise ConfigError("neighbours cannot be mined in shards", fix=fix)
    data = PreparedData.open(folder)
    if (folder / WHOLE).exists():
        fix = f"run scimult mine {folder} max_groups=null, then the shards"
        raise DataError("holds only a part of its groups", path=folder, fix=fix)
    entries = [entry for entry in data.manifest.pairs if entry.part != "neighbours"]
    data.manifest.pairs = entries
    _check_sources(config, data)
    steps.folder.mkdir(parents=True, exist_ok=True)
    with _opened(data, config, steps.folder, steps, open_encoder, limits) as miner:
        for entry in entries:
            miner.mine_blocks(entry, _rules(config, entry), shard)


@contextmanager
def _opened(
    data: PreparedData,
    config: MiningConfig,
    parent: Path,
    steps: Steps | None,
    open_encoder: OpenEncoder | None,
    limits: Limits | None,
    engine: Engine | None = None,
) -> Iterator[MiningSteps]:
    """Open the miner of a prepared folder, with a scratch folder in ``parent``."""
    with scratch_folder(parent / "mining") as scratch, ExitStack() as opened:
        cache = Steps(scratch / "steps") if steps is None else steps
        limits = opened.enter_context(
            within(limits or Limits(), [data.folder, scratch, cache.folder])
        )
        if engine is None:
            engine = opened.enter_context(open_duckdb(scratch, limits))
        embeddings = None if steps is None else steps.folder / "embeddings"
        indexes = Indexes(data.texts, config.search, cache)
        dense = DenseWindows(data, scratch, open_encoder, indexes, embeddings)
        builder = RuleBuilder(data, config, engine, indexes, dense)
        yield MiningSteps(data, config, builder, cache)


def _replace_mined(
    data: PreparedData, entry: PairEntry, mined: Path, counts: MinedCounts, is_part: bool
) -> PairEntry:
    """Replace a pair file by the mined one; return its manifest entry."""
    if is_part and entry.part != "neighbours":  # which the next mining makes anew
        keep_whole(data, entry)
    _replace(data.folder / entry.file, mined)
    if is_part:
        part = PairEntry.of(data.open_pairs(entry))
        entry = part.model_copy(update={"neighbours_of": entry.neighbours_of})
    return entry.mined(counts)


def _warn_of_shares(entry: PairEntry, rules: list[RuleConfig]) -> None:
    """Warn if training will draw the rules in other shares than configured."""
    shares = [rule.share for rule in rules if rule.share is not None]
    if not shares or not entry.with_negatives or entry.split != "train":
        return
    wanted = [share / sum(shares) for share in shares]
    if max(abs(a - b) for a, b in zip(wanted, entry.drawn.values(), strict=True)) > _TOLERANCE:
        draws = ", ".join(
            f"{name} {actual:.0%} ({share:.0%} configured)"
            for (name, actual), share in zip(entry.drawn.items(), wanted, strict=True)
        )
        why = "some pairs have no candidate of a rule, or one that several rules gave"
        warn(f"{entry.file}: shares of draws: {draws}; {why}")


def _warn_of_idle_rules(entries: Sequence[PairEntry]) -> None:
    """Warn, once per part, of the rules that found nothing in any of its splits."""
    by_part: dict[str, Counter[str]] = {}
    for entry in entries:
        if entry.groups:
            by_part.setdefault(f"{entry.source}.{entry.task}", Counter()).update(entry.found)
    for part, counts in by_part.items():
        idle = [name for name in counts if not counts[name]]
        active = [name for name in counts if counts[name]]
        if idle:
            others = f" ({', '.join(active)} did)" if active else ""
            warn(f"{part}: {', '.join(idle)} found no hard negatives{others}")


def _rules(config: MiningConfig, entry: PairEntry) -> list[RuleConfig]:
    if entry.part == "views":
        return []
    if entry.part != "neighbours":
        return config.rules(entry.source, entry.part)
    return next(
        list(neighbours.negatives)
        for neighbours in config.neighbours
        if neighbours.source == entry.neighbours_of
    )


def _add_neighbours(data: PreparedData, neighbours: NeighbourConfig, miner: MiningSteps) -> None:
    """Add the neighbour pairs of a source to the folder and its manifest."""
    total = 0
    for entry in list(data.manifest.pairs):
        if (entry.source, entry.part) != (neighbours.source, "citations"):
            continue
        path = miner.neighbours(entry, neighbours)
        pairs = replace(read_pairs(path), namespace=entry.namespace, part="neighbours")
        if len(pairs):
            new = PairEntry.of(pairs)
            new.neighbours_of = entry.source
            _replace(data.folder / new.file, path)
            data.manifest.pairs.append(new)
        total += len(pairs)
    if not total:
        fix = "choose lower ranks: the window must lie within the papers with citations"
        raise DataError(
            f"no paper of source {neighbours.source!r} has a neighbour in mining.neighbours.ranks",
            value=list(neighbours.ranks),
            fix=fix,
        )


def _replace(path: Path, new: Path) -> None:
    """Replace a file by a link to another; hard links to the old one stay unchanged."""
    path.unlink(missing_ok=True)
    link_or_copy(new, path)


def _drop_neighbours(data: PreparedData) -> None:
    """Remove the neighbour pairs of an earlier mining."""
    entries = data.manifest.pairs
    for entry in entries:
        if entry.part == "neighbours":
            (data.folder / entry.file).unlink()
    data.manifest.pairs = [entry for entry in entries if entry.part != "neighbours"]


def _check_sources(config: MiningConfig, data: PreparedData) -> None:
    """Fail early on an unknown source."""
    parts: dict[str, set[str]] = {}
    for entry in data.manifest.pairs:
        parts.setdefault(entry.source, set()).add(entry.part)
    for name in config.sources:
        if name not in parts:
            raise UnknownNameError("source in mining.sources", name, parts)
    for neighbours in config.neighbours:
        if "citations" not in parts.get(neighbours.source, ()):
            cited = [name for name, own in parts.items() if "citations" in own]
            raise UnknownNameError("source in mining.neighbours", neighbours.source, cited)
        name = neighbours.source + NEIGHBOURS_SUFFIX
        if parts.get(name, set()) - {"neighbours"}:
            fix = "rename that source and prepare again"
            raise ConfigError("neighbours would replace another source", value=name, fix=fix)
