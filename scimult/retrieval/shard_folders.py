"""Folders of shards while an input fills them: open, resume, publish.

`shards` defines the files themselves.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from scimult.errors import ConfigError, StorageError
from scimult.files import (
    FolderKind,
    check_replaceable,
    discard,
    read_json,
    renamed,
    storage_error,
)
from scimult.locks import create_living, is_left, remove_leftovers, temporary_name
from scimult.retrieval.embeddings import EMBEDDINGS
from scimult.retrieval.shards import FORMAT, MANIFEST, Shards, find_shard, publish
from scimult.retrieval.space import Space

_OURS = re.compile(r"(\d{6})\.(npy|arrow)")


def is_shard_folder(folder: Path) -> bool:
    """Return whether a folder holds our shards and nothing else."""
    names = {path.name for path in folder.iterdir() if not is_left(path)}
    return all(map(_OURS.fullmatch, names - {MANIFEST})) and has_manifest(folder)


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest of shards; other folders' manifests share its name.

    Raises
    ------
    DataError
        If there is a manifest that is not JSON.
    """
    if not (folder / MANIFEST).is_file():
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
    """Create the folders of spaces below ``root``, or open those of an earlier call.

    Raises
    ------
    DataError
        If one holds vectors of another space or a damaged manifest.
    StorageError
        If there is anything else, or it cannot be replaced.
    """
    started = [] if overwrite else _started(spaces)
    filled = [folder for folder in started if any(folder.glob("*.npy"))]
    for folder in filled:
        Shards(folder).space.check_same(spaces[folder], folder)
    for folder in started:
        if folder not in filled:
            publish(folder, spaces[folder], [])
    if overwrite:
        check_replaceable(root, ONE if root in spaces else BY_TASK)
        if root.is_dir():
            discard(root, root)
    if not root.exists():
        _create(root, spaces)
    if not any((folder / MANIFEST).is_file() for folder in spaces):
        check_replaceable(root)
    for folder, space in spaces.items():
        if not (folder / MANIFEST).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            publish(folder, space, [])


def check_rows(folder: Path, rows: int) -> None:
    """Check that a call with ``rows`` texts per shard resumes a folder instead of redoing it.

    Of a folder without shards, or with one that such a call could have written, nothing is known.

    Raises
    ------
    ConfigError
        If its shards have another number of rows.
    """
    shards = Shards(folder)
    found = [shard.rows for shard in shards.shards]
    is_whole = bool(found)
    if not is_whole:
        numbers = sorted(
            int(path.stem) for path in folder.glob("*.arrow") if _OURS.match(path.name)
        )
        complete = (find_shard(folder, number, shards.space) for number in numbers)
        found = [shard.rows for shard in islice(filter(None, complete), 2)]
    # Two of one size are no ends of inputs; neither is the first of several in a manifest.
    settled = len(found) > 1 and (is_whole or found[0] == found[1])
    if found and (found[0] > rows or (settled and found[0] != rows)):
        problem = f"shards here have {found[0]:,} rows; by another --rows all are encoded again"
        fix = f"pass --rows {found[0]} or --overwrite, or choose another folder"
        raise ConfigError(problem, path=folder, value=rows, fix=fix)


def check_papers(folder: Path, ids: Sequence[str]) -> None:
    """Check that the first shard of a complete folder has some of the ``ids`` that begin an input.

    Otherwise the input is another one, and would replace all that is here.

    Raises
    ------
    StorageError
        If it has none of them.
    """
    if not has_manifest(folder) or not (shards := Shards(folder)).shards:
        return
    first = Shards(folder, [shards.shards[0].name])
    stored = set(first.ids)
    if not first.damaged and stored.isdisjoint(ids):
        fix = "choose another folder, or --overwrite to replace these"
        raise StorageError("holds embeddings of other texts", path=folder, fix=fix)


def _started(spaces: Mapping[Path, Space]) -> list[Path]:
    """Return the folders that have a manifest, which must be one of shards."""
    started = [folder for folder in spaces if (folder / MANIFEST).is_file()]
    for folder in started:
        if not has_manifest(folder):  # a prepared folder, a checkpoint: theirs must stay
            check_replaceable(folder)
    return started


def _create(root: Path, spaces: Mapping[Path, Space]) -> None:
    """Create all folders and manifests in one rename: no rank sees some without the others."""
    temporary, living = temporary_name(root), None
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        living = create_living(temporary, folder=True)
        for folder, space in spaces.items():
            inside = temporary / folder.relative_to(root)
            inside.mkdir(parents=True, exist_ok=True)
            publish(inside, space, [])
        # Another rank may have been faster; its folders stay.
        with suppress(OSError):
            temporary.rename(root)
    except OSError as error:
        raise storage_error(error, root) from error
    except StorageError as error:
        raise renamed(error, temporary, root) from error.__cause__
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if living is not None:
            os.close(living)


def holds(folder: Path, number: int, space: Space, texts: str) -> bool:
    """Return whether `find_shard` finds a shard; otherwise withdraw the manifest.

    Readers of a published folder thus never see one shard replaced by another's texts.
    """
    if find_shard(folder, number, space, texts) is not None:
        return True
    if Shards(folder).shards:
        publish(folder, space, [])
    return False


def publish_if_whole(folder: Path, space: Space, texts: Sequence[str]) -> list[int]:
    """Publish the shards of these fingerprints if all are there; return the numbers of others.

    Removes left-over shards of a longer input.
    """
    shards = [find_shard(folder, number, space, text) for number, text in enumerate(texts)]
    missing = [number for number, shard in enumerate(shards) if shard is None]
    if not missing:
        publish(folder, space, filter(None, shards))
        for path in folder.iterdir():
            name = _OURS.fullmatch(path.name)
            if name and int(name[1]) >= len(texts):
                path.unlink(missing_ok=True)
    return missing
