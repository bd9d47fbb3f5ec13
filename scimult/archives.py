"""Extract files from zip and tar archives; each has a temporary name until it is complete."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from scimult.disk_space import require_room
from scimult.errors import DataError
from scimult.files import atomic_file
from scimult.progress import progress

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    EOFError,
    NotImplementedError,
)


def unpack(
    archive: Path,
    folder: Path,
    wanted: Sequence[str],
    strip: int = 0,
    on_file: Callable[[Path], None] = lambda path: None,
) -> dict[str, list[str]]:
    """Extract the wanted files of an archive; files that exist already are left alone.

    Parameters
    ----------
    archive : path
        A ``.zip`` file, or a tar file with any compression that ``tarfile`` reads.
    folder : path
        Where the files go.
    wanted : sequence of str
        Paths relative to ``folder``, or globs, in which ``*`` also matches ``/``.
    strip : int
        Leading folders to drop from the archive's own paths.
    on_file : callable
        Called with the path of each extracted file.

    Returns
    -------
    dict
        The paths, relative to ``folder``, that each of ``wanted`` matches.

    Raises
    ------
    DataError
        If the archive is damaged or lacks a wanted file.
    StorageError
        If the folder cannot be written or lacks room.
    """
    matches: dict[str, list[str]] = {pattern: [] for pattern in wanted}
    try:
        for path, size, content in progress(_members(archive), archive.name, unit="file"):
            name = _relative(path, strip)
            matching = [pattern for pattern in wanted if name and fnmatchcase(name, pattern)]
            for pattern in matching:
                matches[pattern].append(name)
            if matching and not (folder / name).exists():
                require_room(archive.parent, size, "unpacked files")
                with atomic_file(folder / name) as temporary, temporary.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                on_file(folder / name)
    except RuntimeError as error:
        if "password" not in str(error):
            raise
        fix = "unpack it yourself into the folder"
        raise DataError("archive is encrypted", path=archive, fix=fix) from error
    except _DAMAGED as error:
        fix = "delete it: the same command downloads it again"
        raise DataError("archive is damaged", path=archive, value=str(error), fix=fix) from error
    missing = [pattern for pattern, names in matches.items() if not names]
    if missing:
        fix = "get the file yourself: its owners may have moved it"
        raise DataError("archive lacks a file", path=archive, value=missing[0], fix=fix)
    return matches


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield path, size and content of each regular file; a tar file is read in one pass."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    with packed.open(info) as content:
                        yield info.filename, info.file_size, content
        return
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            plain = stream.extractfile(member) if member.isfile() else None
            if plain is not None:
                yield member.name, member.size, plain


def _relative(path: str, strip: int) -> str:
    """Return a path without its first folders; empty if it would leave the target folder."""
    pure = PurePosixPath(path.replace("\\", "/"))
    outside = pure.is_absolute() or ".." in pure.parts
    return "" if outside else "/".join(pure.parts[strip:])
