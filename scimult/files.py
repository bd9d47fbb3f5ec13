"""Atomic writes: a reader sees the old file or the whole new one, never half of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scimult.errors import DataError, StorageError


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success fsync it and rename it into place.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written. Nothing is left behind.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _fsync(temporary)
        os.replace(temporary, path)
        _fsync(path.parent)
    except OSError as error:
        if not _concerns(error, path, temporary):
            raise
        raise storage_error(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield a temporary folder; on success fsync its files and rename it to ``path``.

    An existing folder at ``path`` is replaced only after the new one is complete.

    Raises
    ------
    StorageError
        If the disk is full or the parent folder cannot be written.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        publish_folder(temporary, path)
    except OSError as error:
        if not _concerns(error, path, temporary):
            raise
        raise storage_error(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it where the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def publish_folder(temporary: Path, path: Path) -> None:
    """Fsync every file below ``temporary`` and rename the folder to ``path``."""
    for file in sorted(temporary.rglob("*")):
        _fsync(file)
    _fsync(temporary)
    if path.exists():
        old = _temporary_name(path)
        os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(temporary, path)
    _fsync(path.parent)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises
    ------
    DataError
        If it does not exist, is not UTF-8 or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError("file does not exist", path=path, fix="check the path") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"not a valid JSON file: {error}", path=path, fix="write the file again"
        ) from error


def require_room(folder: Path, needed: int, what: str) -> None:
    """Make ``folder`` and check that it can be written and holds ``needed`` more bytes.

    Raises
    ------
    StorageError
        If it cannot be written, or less is free; ``what`` says what the bytes are for.
    """
    probe = _temporary_name(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise storage_error(error, folder) from error
    if free < needed:
        raise StorageError(
            f"{what} need {_size(needed)} and {_size(free)} are free",
            path=folder,
            fix="free disk space, write to another disk, or keep less",
        )


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"


def packed_or_plain(path: Path) -> Path:
    """Return ``path``, or ``path.gz`` if only that is there; for tables and JSON lines."""
    packed = path.with_name(path.name + ".gz")
    may = path.suffix in (".jsonl", ".csv", ".tsv")
    return packed if may and packed.exists() and not path.exists() else path


def sha256(path: Path | str) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def storage_error(error: OSError, path: Path | str) -> StorageError:
    """Turn an ``OSError`` met while writing ``path`` into a message with a fix."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free disk space or write to another disk; nothing half-written was left"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "choose a folder that you may write to"
    else:
        fix = "check that the path exists and can be written"
    return StorageError(f"cannot write: {error.strerror or error}", path=path, fix=fix)


def _concerns(error: OSError, path: Path, temporary: Path) -> bool:
    """Return whether the error comes from writing ``path``, not from an input read meanwhile."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return True
    met = Path(error.filename)
    return met == path or met in temporary.parents or met.is_relative_to(temporary)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
