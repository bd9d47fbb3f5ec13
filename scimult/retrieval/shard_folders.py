"""Folders of shards that are filled from an input: opened, gone on with, published.

`shards` has the files themselves.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scimult.files import FolderKind, check_replaceable, read_json
from scimult.locks import temporary_name
from scimult.retrieval.embeddings import EMBEDDINGS
from scimult.retrieval.shards import (
    FORMAT,
    MANIFEST,
    Shard,
    Shards,
    Space,
    find_shard,
    publish,
    read_ids,
)

_OURS = re.compile(r"\.?(\d{6})\.(npy|arrow)(\..*)?")


def is_shard_folder(folder: Path) -> bool:
    """Return whether a folder holds shards of ours and nothing else."""
    names = {path.name for path in folder.iterdir()}
    if MANIFEST not in names or not all(map(_OURS.fullmatch, names - {MANIFEST})):
        return False
    manifest = read_json(folder / MANIFEST)
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _is_one(folder: Path) -> bool:
    return is_shard_folder(folder) or EMBEDDINGS.is_one(folder)


ONE = FolderKind(EMBEDDINGS.name, _is_one)
BY_TASK = FolderKind(
    "a folder with a folder of embeddings for each task and nothing else",
    lambda folder: all(path.is_dir() and _is_one(path) for path in folder.iterdir()),
)


def open_folder(root: Path, spaces: Mapping[Path, Space], overwrite: bool) -> None:
    """Make the folders of spaces below ``root``, or open what an earlier call left in them.

    Raises
    ------
    DataError
        If one holds vectors of another space, or a manifest that is damaged.
    StorageError
        If anything else is there, or cannot be replaced.
    """
    started = all((folder / MANIFEST).is_file() for folder in spaces)
    if started and not overwrite:
        for folder, space in spaces.items():
            if any(folder.glob("*.npy")):
                Shards(folder).space.check_same(space, folder)
            else:
                publish(folder, space, [])
        return
    if overwrite:
        check_replaceable(root, ONE if root in spaces else BY_TASK)
        if root.is_dir():
            shutil.rmtree(root)
    elif not root.exists():
        _begin(root, spaces)
    if not any((folder / MANIFEST).is_file() for folder in spaces):
        check_replaceable(root)
    for folder, space in spaces.items():
        if not (folder / MANIFEST).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            publish(folder, space, [])


def _begin(root: Path, spaces: Mapping[Path, Space]) -> None:
    """Make the folders with their manifests at once: no rank finds one without the other."""
    temporary = temporary_name(root)
    try:
        for folder, space in spaces.items():
            inside = temporary / folder.relative_to(root)
            inside.mkdir(parents=True)
            publish(inside, space, [])
        # Another rank may have been faster: nothing takes the place of what it made.
        with suppress(OSError):
            temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def holds(
    folder: Path, number: int, space: Space, ids: Sequence[str], hashes: Sequence[str]
) -> bool:
    """Return whether a shard is whole and of these texts; withdraw the manifest if it is not.

    Readers of a published folder never see a shard of other texts in the place of one.
    """
    if find_shard(folder, number, space) is not None:
        table = read_ids(folder, number)
        if table["id"].to_pylist() == list(ids) and table["hash"].to_pylist() == list(hashes):
            return True
    if Shards(folder).shards:
        publish(folder, space, [])
    return False


def publish_if_whole(folder: Path, space: Space, count: int) -> list[int]:
    """Publish ``count`` shards if all are there; return the numbers of those that are missing.

    Shards of an input that was longer are removed.
    """
    shards: list[Shard] = []
    missing = []
    for number in range(count):
        shard = find_shard(folder, number, space)
        if shard is None:
            missing.append(number)
        else:
            shards.append(shard)
    if not missing:
        publish(folder, space, shards)
        for path in folder.iterdir():
            name = _OURS.fullmatch(path.name)
            if name and not path.name.startswith(".") and int(name[1]) >= count:
                path.unlink(missing_ok=True)
    return missing
