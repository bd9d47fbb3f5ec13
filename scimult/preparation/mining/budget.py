"""Limit large pair files to the groups that are mined and trained (``max_groups``).

Whole queries are chosen, the same ones in all training files of a task, so that training still
sees all known positives of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from scimult.data.manifest import PairEntry
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged, offsets_of
from scimult.files import link_or_copy
from scimult.preparation.mining.hashing import ALL_KEYS, key

FOLDER = "whole"
# Keys computed at a time.
_BLOCK = 1 << 20
_PARTS = ("citations", "links", "labels", "queries", "neighbours")


def keys_below(entries: Sequence[PairEntry], limit: int | None) -> dict[str, int]:
    """Return, by file, the bound below which the keys of kept queries must be.

    ``limit`` is the approximate number of groups to keep of the largest training file of a task,
    and its other files keep the same share. Files that are not in the result stay whole.
    """
    if limit is None:
        return {}
    cut = [entry for entry in entries if entry.split == "train" and entry.part in _PARTS]
    largest: dict[str, int] = {}
    for entry in cut:
        largest[entry.task] = max(largest.get(entry.task, 1), entry.groups)
    return {entry.file: round(min(1.0, limit / largest[entry.task]) * ALL_KEYS) for entry in cut}


def chosen_groups(pairs: PairFile, seed: int, below: int) -> PairFile:
    """Return the chosen groups of a mined file; the other groups have no negatives."""
    blocks = [np.empty(0, np.int64)]
    for start in range(0, len(pairs), _BLOCK):
        mask = key(seed, pairs.queries[start : start + _BLOCK]) < below
        blocks.append(start + np.flatnonzero(mask))
    groups = np.concatenate(blocks)
    offsets = pairs.negatives.offsets
    return replace(
        pairs,
        queries=pairs.queries[groups],
        positives=pairs.positives.take(groups),
        unsampled=pairs.unsampled.take(groups),
        negatives=Ragged(pairs.negatives.values, offsets_of(offsets[groups + 1] - offsets[groups])),
    )


def keep_whole(data: PreparedData, entry: PairEntry) -> None:
    """Set a whole pair file aside before a part of it replaces it."""
    whole = whole_file(data, entry)
    whole.parent.mkdir(exist_ok=True)
    link_or_copy(data.folder / entry.file, whole)


def restore_whole(data: PreparedData) -> None:
    """Restore the pair files of which an earlier mining left a part."""
    for index, entry in enumerate(data.manifest.pairs):
        whole = whole_file(data, entry)
        if whole.exists():
            whole.replace(data.folder / entry.file)
            data.manifest.pairs[index] = PairEntry.of(data.open_pairs(entry))
    with suppress(OSError):  # absent, or not empty
        (data.folder / FOLDER).rmdir()


def whole_file(data: PreparedData, entry: PairEntry) -> Path:
    """Return the path at which a whole pair file is set aside."""
    return data.folder / FOLDER / Path(entry.file).name
