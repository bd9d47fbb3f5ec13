"""Fills the pair files of a prepared folder with hard negatives."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scimult.data.manifest import MinedCounts, PairEntry
from scimult.data.pairs import read_pairs
from scimult.data.prepared import PREPARED, PreparedData
from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.files import atomic_folder, link_or_copy
from scimult.preparation.mining.budget import FOLDER as WHOLE
from scimult.preparation.mining.budget import keep_whole, restore_whole
from scimult.preparation.mining.config import MiningConfig, NeighbourConfig, RuleConfig
from scimult.preparation.mining.dense import DenseWindows, OpenEncoder
from scimult.preparation.mining.engine import Engine, Limits, open_duckdb
from scimult.preparation.mining.hashing import ALL_KEYS
from scimult.preparation.mining.indexes import Indexes
from scimult.preparation.mining.memory import within
from scimult.preparation.mining.rules import RuleBuilder
from scimult.preparation.mining.steps import MiningSteps, Shard
from scimult.preparation.steps import Steps
from scimult.progress import warn

# A difference between the share of a rule and its draws that is worth a line.
_NOTED = 0.02


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

    Groups without a hard negative are kept with an empty list and counted in the manifest.

    Parameters
    ----------
    folder : Path
        A prepared folder that nobody else reads: see ``mine_again``.
    config : MiningConfig
        Rules, counts and bands.
    open_encoder : callable, optional
        Opens the model of a ``dense`` rule.
    steps : Steps, optional
        Where what is finished is kept for a later run; nowhere by default.
    limits : Limits, optional
        Memory of this process, and threads of DuckDB.
    engine : Engine, optional
        Runs the plans; DuckDB by default.

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
    restore_whole(data)
    _drop_neighbours(data)
    _check_sources(config, data)
    with _opened(data, config, folder, steps, open_encoder, limits, engine) as made:
        for neighbours in config.neighbours:
            _add_neighbours(data, neighbours, made)
        # The builder asks for known positives from here on: neighbours are among them.
        entries = data.manifest.pairs
        mined = [made.mine(entry, _rules(config, entry)) for entry in entries]
        # Only now: known positives are those of whole files.
        data.manifest.pairs = [
            _put_mined(data, entry, path, counts, made.below(entry) < ALL_KEYS)
            for entry, (path, counts) in zip(entries, mined, strict=True)
        ]
    for entry in data.manifest.pairs:
        _tell_shares(entry, _rules(config, entry))
    _note_idle_rules(data.manifest.pairs)
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
    """Replace a prepared folder by one that is mined with ``config``; texts and tokens stay.

    Raises
    ------
    ConfigError, UnknownNameError, DataError, StorageError
        See ``mine``; the old folder is then still there, unchanged.
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
    """Mine every n-th block of all pair files and leave them in ``steps``; nothing else changes.

    When all shards are done, by processes on whatever machines that share ``steps``, ``mine_again``
    with the same configuration finds every block, compares it with its checksum, and mines
    again what does not agree.

    Raises
    ------
    ConfigError
        If the configuration adds pairs by neighbours: these come before all blocks.
    UnknownNameError, DataError, StorageError
        See ``mine``.
    """
    if config.neighbours:
        fix = "mine a folder with neighbours as a whole"
        raise ConfigError("neighbours cannot be mined in shards", fix=fix)
    data = PreparedData.open(folder)
    if (folder / WHOLE).exists():
        fix = f"scimult mine {folder} max_groups=null, then the shards"
        raise DataError("holds a part of its groups", path=folder, fix=fix)
    entries = [entry for entry in data.manifest.pairs if entry.part != "neighbours"]
    data.manifest.pairs = entries
    _check_sources(config, data)
    steps.folder.mkdir(parents=True, exist_ok=True)
    with _opened(data, config, steps.folder, steps, open_encoder, limits) as made:
        for entry in entries:
            made.mine_shard(entry, _rules(config, entry), shard)


@contextmanager
def _opened(
    data: PreparedData,
    config: MiningConfig,
    place: Path,
    steps: Steps | None,
    open_encoder: OpenEncoder | None,
    limits: Limits | None,
    engine: Engine | None = None,
) -> Iterator[MiningSteps]:
    """Open what mining takes; what it needs only meanwhile stands in ``place``."""
    with TemporaryDirectory(prefix=".mining.", dir=place) as scratch, ExitStack() as opened:
        cache = Steps(Path(scratch) / "steps") if steps is None else steps
        folders = [data.folder, Path(scratch), cache.folder]
        limits = opened.enter_context(within(limits, folders))
        if engine is None:
            engine = opened.enter_context(open_duckdb(Path(scratch), limits))
        embeddings = None if steps is None else steps.folder / "embeddings"
        indexes = Indexes(data.texts, config.search, cache)
        dense = DenseWindows(data, Path(scratch), open_encoder, indexes, embeddings)
        builder = RuleBuilder(data, config, engine, indexes, dense)
        yield MiningSteps(data, config, builder, cache)


def _put_mined(
    data: PreparedData, entry: PairEntry, mined: Path, counts: MinedCounts, is_part: bool
) -> PairEntry:
    """Put a mined pair file in its place; return its entry in the manifest."""
    if is_part:
        keep_whole(data, entry)
    _put(mined, data.folder / entry.file)
    return (PairEntry.of(data.open_pairs(entry)) if is_part else entry).mined(counts)


def _tell_shares(entry: PairEntry, rules: list[RuleConfig]) -> None:
    """Say so where pairs without a find of some rule change the shares that were asked for."""
    shares = [rule.share for rule in rules if rule.share is not None]
    if not shares or not entry.with_negatives or entry.split != "train":
        return
    asked = [share / sum(shares) for share in shares]
    draws = entry.drawn
    if max(abs(a - b) for a, b in zip(asked, draws.values(), strict=True)) > _NOTED:
        told = ", ".join(
            f"{name} {b:.0%} ({a:.0%} asked)"
            for (name, b), a in zip(draws.items(), asked, strict=True)
        )
        why = "some pairs have no find of a rule, or one that several rules gave"
        warn(f"{entry.file}: shares of draws: {told}; {why}")


def _note_idle_rules(entries: Sequence[PairEntry]) -> None:
    """Name the rules that found nothing in any split of a part: one line for each part."""
    finds: dict[str, Counter[str]] = {}
    for entry in entries:
        if entry.groups:
            finds.setdefault(f"{entry.source}.{entry.task}", Counter()).update(entry.found)
    for part, counts in finds.items():
        idle = [name for name in counts if not counts[name]]
        fed = [name for name in counts if counts[name]]
        if idle:
            others = f" ({', '.join(fed)} did)" if fed else ""
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


def _add_neighbours(data: PreparedData, neighbours: NeighbourConfig, made: MiningSteps) -> None:
    """Add the neighbour pairs of a source and enter them in the manifest."""
    total = 0
    for entry in list(data.manifest.pairs):
        if (entry.source, entry.part) != (neighbours.source, "citations"):
            continue
        path = made.neighbours(entry, neighbours)
        pairs = replace(read_pairs(path), namespace=entry.namespace, part="neighbours")
        if len(pairs):
            new = PairEntry.of(pairs)
            new.neighbours_of = entry.source
            _put(path, data.folder / new.file)
            data.manifest.pairs.append(new)
        total += len(pairs)
    if not total:
        fix = "choose lower ranks: the window must lie within the papers that have a citation"
        raise DataError(
            f"no paper of source {neighbours.source!r} has a neighbour in mining.neighbours.ranks",
            value=list(neighbours.ranks),
            fix=fix,
        )


def _put(made: Path, path: Path) -> None:
    """Put a file that was made in the place of another; copies of the old one stay as they are."""
    path.unlink(missing_ok=True)
    link_or_copy(made, path)


def _drop_neighbours(data: PreparedData) -> None:
    """Forget neighbour pairs of an earlier mining."""
    entries = data.manifest.pairs
    for entry in entries:
        if entry.part == "neighbours":
            (data.folder / entry.file).unlink()
    data.manifest.pairs = [entry for entry in entries if entry.part != "neighbours"]


def _check_sources(config: MiningConfig, data: PreparedData) -> None:
    """Fail early on a wrong name."""
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
