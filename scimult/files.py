"""Atomic writes: a reader sees the old file or the complete new one, never a part of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scimult.errors import DataError, StorageError
from scimult.locks import (
    OLD,
    create_living,
    exclusive,
    left_by_writers,
    lock_name,
    make_folder,
    remove_if_empty,
    remove_leftovers,
    temporary_name,
)

_MARK_BYTES = 4096
# NumPy's message for a full disk; it has no error number.
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder that we write and may overwrite with another of its kind.

    Attributes
    ----------
    name : str
        With its article, such as ``"a prepared folder"``.
    is_one : callable
        Whether we wrote a folder. It must be false for a folder with anyone else's files, which
        would be deleted.
    """

    name: str
    is_one: Callable[[Path], bool]


def holds_only(folder: Path, names: Iterable[str]) -> bool:
    """Return whether every file below ``folder`` is among ``names``, given as relative paths."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return files <= set(names)


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on success fsync it and rename it to ``path``.

    Links are followed; a replaced file keeps its permissions. Leftovers of killed writers of the
    same file are removed.

    Raises
    ------
    StorageError
        If ``path`` is a folder, a device or a pipe, the disk is full or the folder cannot be
        written. Nothing is left behind.
    """
    path = Path(path)
    # os.path's functions, as pathlib's raise an error for a name that is too long.
    if os.path.exists(path) and not path.is_file():
        problem = "is a folder" if path.is_dir() else "is a device or a pipe, not a file"
        raise StorageError(problem, path=path, fix="give a file name")
    if os.path.islink(path):
        path = Path(os.path.realpath(path))
    temporary = temporary_name(path)
    living = None
    new: list[Path] = []
    try:
        new = make_folder(path.parent)
        remove_leftovers(path)
        living = create_living(temporary)
        yield temporary
        with suppress(OSError):  # it is new, or on a file system without permissions
            shutil.copymode(path, temporary)
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
        if living is not None:
            os.close(living)
        remove_if_empty(*new)


@contextmanager
def atomic_folder(path: Path | str, kind: FolderKind | None = None) -> Iterator[Path]:
    """Yield a temporary folder; on success fsync its files and rename it to ``path``.

    An existing folder at ``path`` is replaced only if it is empty or of ``kind``, and only once
    the new one is complete. No other process can write it meanwhile. Leftovers of killed writers
    are recovered or removed first.

    Parameters
    ----------
    path : path
        The folder.
    kind : FolderKind, optional
        What may be replaced; by default only an empty folder.

    Raises
    ------
    StorageError
        Before the body runs, if ``path`` must not be replaced or another process writes it; or
        if the disk is full or the parent folder cannot be written.
    """
    given, path = Path(path), _absolute(path)
    check_replaceable(given, kind)
    temporary = temporary_name(path)
    with ExitStack() as stack:
        try:
            stack.callback(remove_if_empty, *make_folder(path.parent))
            stack.enter_context(exclusive(lock_name(path), given))
            _recover(path)
            check_replaceable(given, kind)
            stack.callback(os.close, create_living(temporary, folder=True))
            yield temporary
            check_replaceable(given, kind)
            publish_folder(temporary, path)
        except OSError as error:
            if not _concerns(error, path, temporary):
                raise
            raise storage_error(error, given) from error
        except StorageError as error:
            raise renamed(error, temporary, given) from error.__cause__
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(path: Path | str, kind: FolderKind | None = None) -> None:
    """Check that ``atomic_folder`` may replace ``path``: a wrong path must not delete anything.

    Raises
    ------
    StorageError
        If it is a link, a file, a device, the current folder or a parent of it, or a folder that
        is neither empty nor of ``kind``; or if its name is too long, or a part of it is a file.
    """
    path = Path(path)
    if os.path.islink(path):
        fix = f"give the folder itself ({os.path.realpath(path)}), or a new one"
        raise StorageError("is a link, which would be replaced", path=path, fix=fix)
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, path) from error
    if not path.is_dir():
        raise StorageError("exists and is not a folder", path=path, fix="choose a new folder")
    real = path.resolve()
    if real == Path.cwd() or real in Path.cwd().parents:
        fix = "give a folder inside it, which may be new"
        raise StorageError("cannot replace the current folder", path=path, fix=fix)
    if not any(path.iterdir()):
        return
    if kind is None:
        raise StorageError("output exists already", path=path, fix="choose another folder")
    try:
        is_one = kind.is_one(path)
    except (DataError, KeyError, TypeError, AttributeError):  # someone else's manifest
        is_one = False
    if not is_one:
        fix = "choose a new folder, or empty this one yourself"
        raise StorageError(f"exists and is not {kind.name}", path=path, fix=fix)


def check_own_file(path: Path, what: str, mark: bytes) -> None:
    """Check that a file is absent or ours, which has ``mark`` near its start.

    Raises
    ------
    StorageError
        If it is neither.
    """
    if not path.exists():
        return
    own = False
    if path.is_file():
        with path.open("rb") as file:
            own = mark in file.read(_MARK_BYTES)
    if not own:
        raise StorageError(f"exists and is not {what}", path=path, fix="choose another file")


@contextmanager
def only_writer(folder: Path | str, out: Path | str | None = None) -> Iterator[None]:
    """Create ``folder`` and keep other processes from writing into it while the body runs.

    New folders that stay empty are removed again. For folders that grow in place;
    ``atomic_folder`` locks by itself. Messages name ``out``, if given, instead of the folder.

    Raises
    ------
    StorageError
        If another process holds the folder, or it cannot be written.
    """
    folder = Path(folder)
    named = folder if out is None else Path(out)
    with ExitStack() as stack:
        try:
            # Another process may create it meanwhile: the lock decides.
            stack.callback(remove_if_empty, *make_folder(folder))
            stack.enter_context(exclusive(folder / ".lock", named))
        except OSError as error:
            raise storage_error(error, named) from error
        yield


def folder_bytes(folder: Path | str) -> int:
    """Return the size of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def recover_folder(path: Path | str) -> None:
    """Restore a folder whose replacement was killed between its two renames."""
    path = _absolute(path)
    if not os.path.lexists(path) and left_by_writers(path, OLD):
        with suppress(StorageError, OSError), exclusive(lock_name(path), path):
            _recover(path)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it where the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def publish_folder(temporary: Path, path: Path) -> None:
    """Fsync all files below ``temporary`` and rename it to ``path``; remove what that replaces."""
    for file in sorted(temporary.rglob("*")):
        _fsync(file)
    _fsync(temporary)
    if path.exists():
        os.replace(path, temporary_name(path, OLD))
    os.replace(temporary, path)
    for old in left_by_writers(path, OLD):  # also by killed ones
        discard(old, path)
    _fsync(path.parent)


def _recover(path: Path) -> None:
    """Undo or finish the work of killed writers of a folder; the caller holds its lock."""
    for old in left_by_writers(path, OLD):
        if os.path.lexists(path):
            discard(old, path)
        else:
            os.replace(old, path)
    remove_leftovers(path)


def discard(old: Path, path: Path) -> None:
    """Remove a replaced folder, renamed first so that a part of it is never restored."""
    doomed = temporary_name(path)
    os.replace(old, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@cache
def allow_many_files() -> None:
    """Raise this process's limit of open files, often 1,024, to the most that the system allows.

    Python keeps mapped files open.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # not every system takes its own maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def write_text(path: Path | str, text: str) -> None:
    r"""Write ``text`` as UTF-8, atomically; undecodable file-name bytes become ``\udc..``."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises
    ------
    DataError
        If it does not exist, cannot be read, is not UTF-8 or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError("file does not exist", path=path, fix="check the path") from error
    except (IsADirectoryError, PermissionError) as error:
        problem = f"cannot read: {error.strerror}"
        raise DataError(problem, path=path, fix="check the path") from error
    except (ValueError, RecursionError) as error:
        problem = f"not a valid JSON file: {json_problem(error)}"
        raise DataError(problem, path=path, fix="write the file again") from error


def json_problem(error: ValueError | RecursionError) -> str:
    """Return a short reason why a text is not JSON."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return str(error)
    return "an integer has too many digits"


def sha256(path: Path | str) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    return file_digest(path, "sha256")


def checksums_below(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def file_digest(path: Path | str, kind: str) -> str:
    """Return a hexadecimal checksum of a file's content."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def storage_error(error: OSError, path: Path | str) -> StorageError:
    """Turn an ``OSError`` raised while writing ``path`` into a message with a fix."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if error.errno is None and _SHORT_WRITE.search(reason):
        reason, full = f"no space left on the device ({reason} bytes)", True
    fix = "check that the path exists and can be written"
    if full:
        fix = "free disk space or write to another disk, then repeat"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "choose a folder that you may write to"
    elif error.errno == errno.EFBIG:
        fix = "allow larger files (ulimit -f), or write to a disk that takes them"
    elif error.errno == errno.ENAMETOOLONG:
        fix = "choose a shorter name; its temporary name has a few more characters"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        fix = "check the path: a part of it is a file"
    return StorageError(f"cannot write: {reason}", path=path, fix=fix)


def renamed(error: StorageError, temporary: Path, path: Path) -> StorageError:
    """Return an error about a part of a folder by the name that the part was to have."""
    if error.path is None or not Path(error.path).is_relative_to(temporary):
        return error
    final = path / Path(error.path).relative_to(temporary)
    return type(error)(error.problem, path=final, value=error.value, fix=error.fix)


def _concerns(error: OSError, path: Path, temporary: Path) -> bool:
    """Return whether the error comes from writing ``path``, not from reading some input."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return True
    failed = Path(error.filename)
    ours = (path, lock_name(path))
    return failed in ours or failed in temporary.parents or failed.is_relative_to(temporary)


def _absolute(path: Path | str) -> Path:
    """Return a path whose last part is a name, so that it can have siblings."""
    path = Path(path)
    return path if path.name and path.name != ".." else path.resolve()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
