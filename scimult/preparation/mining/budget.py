"""Which groups of large pair files are mined, and trained: no more than epochs will draw.

Queries are chosen, with all their groups, and the same ones in all training files of a task: so
what training reads of a query holds all its known positives.
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
# Keys that are made at once.
_BLOCK = 1 << 20
_PARTS = ("citations", "links", "labels", "queries")


def keys_below(entries: Sequence[PairEntry], limit: int | None) -> dict[str, int]:
    """Return, by file, the number that the keys of queries must be below to stay.

    Parameters
    ----------
    entries : sequence of PairEntry
        All pair files; those that are not named in the result stay whole.
    limit : int, optional
        Groups, more or less, that stay of the largest training file of a task; of its other
        files the same share. All stay by default.
    """
    if limit is None:
        return {}
    cut = [entry for entry in entries if entry.split == "train" and entry.part in _PARTS]
    largest: dict[str, int] = {}
    for entry in cut:
        largest[entry.task] = max(largest.get(entry.task, 1), entry.groups)
    return {entry.file: round(min(1.0, limit / largest[entry.task]) * ALL_KEYS) for entry in cut}


def chosen_groups(pairs: PairFile, seed: int, below: int) -> PairFile:
    """Return the chosen groups of a mined file; the others have no negatives."""
    blocks = [np.empty(0, np.int64)]
    for start in range(0, len(pairs), _BLOCK):
        mask = key(seed, pairs.queries[start : start + _BLOCK]) < below
        blocks.append(start + np.flatnonzero(mask))
    places = np.concatenate(blocks)
    offsets = pairs.negatives.offsets
    return replace(
        pairs,
        queries=pairs.queries[places],
        positives=pairs.positives.take(places),
        unsampled=pairs.unsampled.take(places),
        negatives=Ragged(pairs.negatives.values, offsets_of(offsets[places + 1] - offsets[places])),
    )


def keep_whole(data: PreparedData, entry: PairEntry) -> None:
    """Put a pair file aside of which the folder gets a part."""
    whole = whole_file(data, entry)
    whole.parent.mkdir(exist_ok=True)
    link_or_copy(data.folder / entry.file, whole)


def restore_whole(data: PreparedData) -> None:
    """Take back the pair files of which an earlier mining left a part."""
    for place, entry in enumerate(data.manifest.pairs):
        whole = whole_file(data, entry)
        if whole.exists():
            whole.replace(data.folder / entry.file)
            data.manifest.pairs[place] = PairEntry.of(data.open_pairs(entry))
    with suppress(OSError):  # none was there, or other files are
        (data.folder / FOLDER).rmdir()


def whole_file(data: PreparedData, entry: PairEntry) -> Path:
    """Return where a pair file is kept of which the folder has a part."""
    return data.folder / FOLDER / Path(entry.file).name
