"""Checksummed downloads of public files, resumed where they stopped (`scimult.transfers`).

Every file is verified against a checksum: the one its owners publish (SHA-256 or MD5) or else the
SHA-256 of the first download, recorded in the folder's ``.downloads.json`` (trust on first use:
later changes are noticed, a wrong first download is not).

An archive is downloaded the same way, unpacked and deleted. If the process is killed in between,
the archive stays, and the next call unpacks what is still missing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scimult.archives import unpack
from scimult.errors import DataError
from scimult.files import (
    file_digest,
    only_writer,
    read_json,
    sha256,
    write_json,
)
from scimult.transfers import fetch

RECORD = ".downloads.json"


@dataclass(frozen=True)
class Remote:
    """A file and its URL.

    Attributes
    ----------
    name : str
        Target path, relative to the download folder.
    url : str
        Where to download it.
    sha256, md5 : str, optional
        Published checksum of its content.
    """

    name: str
    url: str
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Archive(Remote):
    """An archive that is unpacked into its own folder.

    Attributes
    ----------
    wanted : tuple of str
        Files to extract, as paths or globs, in which ``*`` also matches ``/``.
    strip : int
        Leading folders to drop from the archive's own paths.
    """

    wanted: tuple[str, ...] = ()
    strip: int = 0


def address(base: str, name: str) -> str:
    """Return the URL of a file below ``base``."""
    return f"{base.rstrip('/')}/{quote(name)}"


def download(
    files: Iterable[Remote], folder: Path, on_file: Callable[[Path], None] = lambda path: None
) -> list[Path]:
    """Download missing files and verify those downloaded before.

    Parameters
    ----------
    files : iterable of Remote
        The wanted files.
    folder : Path
        Where the files go; its ``.downloads.json`` records their origin and checksums.
    on_file : callable
        Called with the path of each file before its download starts.

    Returns
    -------
    list of Path
        The files that this call downloaded.

    Raises
    ------
    DataError
        If a URL cannot be read, a checksum differs, or a file is there that was downloaded as
        another one. Finished files stay, and so does the part of an unfinished one.
    StorageError
        If the folder cannot be written, lacks room, or another process downloads into it.
    """
    downloaded: list[Path] = []
    with only_writer(folder / ".downloading"):
        for file in files:
            if isinstance(file, Archive):
                downloaded += _download_archive(file, folder, on_file)
            elif not _is_present(file, folder):
                on_file(folder / file.name)
                _download_file(file, folder)
                downloaded.append(folder / file.name)
    return downloaded


def _is_present(file: Remote, folder: Path) -> bool:
    """Return whether a file exists; verify it, and what it was downloaded as, if we did."""
    path, record = folder / file.name, _read_record(folder)
    if path.exists() and file.name in record:
        known = record[file.name]
        # A mirror has another address, but calls the same file the same.
        if posixpath.basename(known["url"]) != posixpath.basename(file.url):
            fix = "name another folder for these files"
            problem = f"was downloaded from {known['url']}, not {file.url}"
            raise DataError(problem, path=path, fix=fix)
        _verify(sha256(path), file.sha256 or known["sha256"], path, file.url)
    return path.exists()


def _download_file(file: Remote, folder: Path) -> None:
    path = folder / file.name
    expected = file.sha256 or _read_record(folder).get(file.name, {}).get("sha256")

    def checked(content: Path) -> str:
        digest = sha256(content)
        _verify(digest, expected, path, file.url)
        if file.md5 is not None:
            _verify(file_digest(content, "md5"), file.md5, path, file.url, "MD5")
        return digest

    _record(file.url, path, fetch(file.url, path, checked), folder)


def _record(url: str, path: Path, digest: str, folder: Path) -> None:
    entry = {"url": url, "sha256": digest, "bytes": path.stat().st_size}
    write_json(folder / RECORD, {**_read_record(folder), _name(path, folder): entry})


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _download_archive(
    archive: Archive, folder: Path, on_file: Callable[[Path], None]
) -> list[Path]:
    """Unpack the missing files of an archive, downloading it if needed."""
    path, new_files = folder / archive.name, []
    # What each glob matched, once the archive has been read through.
    matches = _read_record(folder).get(archive.name, {}).get("unpacked", {})

    def has(name: str) -> bool:
        return _is_present(Remote(_name(path.parent / name, folder), archive.url), folder)

    missing = [p for p in archive.wanted if not all(map(has, matches.get(p, [p])))]
    if not missing:
        return []
    if not _is_present(archive, folder):
        on_file(path)
        _download_file(archive, folder)

    def on_unpacked(file: Path) -> None:
        _record(archive.url, file, sha256(file), folder)
        new_files.append(file)

    new_matches = unpack(path, path.parent, missing, archive.strip, on_unpacked)
    record = _read_record(folder)
    if archive.name in record:  # not if the user put the archive there
        entry = {**record[archive.name], "unpacked": {**matches, **new_matches}}
        write_json(folder / RECORD, {**record, archive.name: entry})
        path.unlink()
    return new_files


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    record = read_json(path) if path.exists() else {}
    if not isinstance(record, dict):
        fix = "delete it: files are then downloaded and trusted anew"
        raise DataError("not a record of downloads", path=path, fix=fix)
    return record


def _verify(digest: str, expected: str | None, path: Path, url: str, kind: str = "SHA-256") -> None:
    if expected is not None and digest != expected.lower():
        raise DataError(
            f"differs from the file known from {url}: its {kind} is {digest}, not {expected}",
            path=path,
            fix="delete it to download it again; if its owners changed it, also delete its entry "
            f"in {RECORD}",
        )
