"""Resumable, checksummed downloads of public files.

A file is written as ``.NAME.part`` next to its target and renamed when complete. An interrupted
download resumes there if the server confirms that its file has not changed (``Range`` with
``If-Range``, RFC 9110, sections 13.1.5 and 14.2); otherwise it starts over.

Every file is verified against a checksum: the one its owners publish (SHA-256 or MD5) or else the
SHA-256 of the first download, recorded in the folder's ``.downloads.json`` (trust on first use:
later changes are noticed, a wrong first download is not).

An archive is downloaded the same way, unpacked and deleted. If the process is killed in between,
the archive stays, and the next call unpacks what is still missing.
"""

from __future__ import annotations

import errno
import http.client
import os
import posixpath
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from scimult import __version__
from scimult.archives import unpack
from scimult.disk_space import require_room
from scimult.errors import DataError
from scimult.files import (
    file_digest,
    only_writer,
    read_json,
    sha256,
    storage_error,
    write_json,
)
from scimult.progress import bar

RECORD = ".downloads.json"
_BLOCK = 1 << 20
_TIMEOUT = 60.0
_WAITS = (1.0, 4.0, 15.0)
"""Seconds to wait before each retry."""


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
    _record(file.url, path, _fetch(file, path, expected), folder)


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


def _fetch(file: Remote, path: Path, expected: str | None) -> str:
    """Download one file to ``path``; return its SHA-256."""
    url = file.url
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        waits: list[float] | None = None
        while True:
            try:
                _continue_part(url, part)
                break
            except (OSError, http.client.HTTPException) as error:
                if waits is None:  # A machine without a network is told so soon.
                    waits = list(_WAITS[:1] if _is_without_network(error) else _WAITS)
                if not waits or not _is_temporary(error):
                    raise _unreachable(error, url, path) from error
                time.sleep(waits.pop(0))
        digest = sha256(part)
        try:
            _verify(digest, expected, path, url)
            if file.md5 is not None:
                _verify(file_digest(part, "md5"), file.md5, path, url, "MD5")
        except DataError:
            _discard(part)
            raise
        with part.open("rb") as content:
            os.fsync(content.fileno())
        os.replace(part, path)
        _discard(part)
    except OSError as error:
        raise storage_error(error, path) from error
    return digest


def _continue_part(url: str, part: Path) -> None:
    """Download the rest of ``part``, or all of it if the server does not resume."""
    state = part.with_name(f"{part.name}.json")
    start, validator = _progress_of(part, state, url)
    # Compression in transit would make byte ranges meaningless.
    headers = {"User-Agent": f"scimult/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code == 416:  # range not satisfiable
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # killed after its last byte, while it was verified
            _discard(part)
            raise ConnectionResetError("the file on the server has changed") from error
        raise
    with answer:
        resumes = answer.status == 206 and _begins_at(answer.headers, start)
        if answer.status == 206 and not resumes:
            _discard(part)
            raise ConnectionResetError("the server sent a different range than requested")
        start = start if resumes else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if total is not None:
            require_room(part.parent, total - start, "downloads")
        if not resumes:
            # Old bytes must never coexist with the new file's validator.
            _discard(part)
            validator = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            write_json(state, {"url": url, "validator": validator})
        with (
            part.open("r+b" if resumes else "wb") as file,
            bar(part.name[1:-5], total=total, unit="B", initial=start) as meter,
        ):
            file.seek(start)
            while block := answer.read1(_BLOCK):
                file.write(block)
                meter.update(len(block))
            size = file.tell()
    if total is not None and size < total:
        raise http.client.IncompleteRead(b"", total - size)


def _progress_of(part: Path, state: Path, url: str) -> tuple[int, str]:
    """Return the bytes already downloaded from this URL and their validator.

    A weak validator (``W/``) does not guarantee equal bytes and is ignored.
    """
    if not (part.exists() and state.exists()):
        return 0, ""
    try:
        saved = read_json(state)
    except DataError:  # killed while it was written
        return 0, ""
    validator = saved.get("validator") if isinstance(saved, dict) else None
    if not validator or validator.startswith("W/") or saved.get("url") != url:
        return 0, ""
    return part.stat().st_size, str(validator)


def _begins_at(headers: Any, start: int) -> bool:
    match = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
    return match is not None and int(match[1]) == start


def _is_temporary(error: BaseException) -> bool:
    """Return whether a retry may help: not if the server refuses or our disk fails."""
    if isinstance(error, HTTPError):
        return error.code in (408, 425, 429) or error.code >= 500
    return isinstance(error, (URLError, ConnectionError, TimeoutError, http.client.HTTPException))


def _is_without_network(error: BaseException) -> bool:
    """Return whether the host's name is unknown, no route leads there, or nobody answers."""
    reason = getattr(error, "reason", None)
    unrouted = getattr(reason, "errno", None) in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    return unrouted or isinstance(reason, (socket.gaierror, TimeoutError))


def _unreachable(error: BaseException, url: str, path: Path) -> Exception:
    if isinstance(error, (URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
        fix = "run the command again, which resumes the download, or get the file yourself"
        if _is_without_network(error):
            fix = f"check the network, then {fix}"
        if isinstance(error, HTTPError) and not _is_temporary(error):
            fix = "get the file yourself: its owners may have moved it"
        reason = str(error) or type(error).__name__
        return DataError(f"cannot read {url}: {reason}", path=path, fix=fix)
    assert isinstance(error, OSError)
    return error


def _verify(digest: str, expected: str | None, path: Path, url: str, kind: str = "SHA-256") -> None:
    if expected is not None and digest != expected.lower():
        raise DataError(
            f"differs from the file known from {url}: its {kind} is {digest}, not {expected}",
            path=path,
            fix="delete it to download it again; if its owners changed it, also delete its entry "
            f"in {RECORD}",
        )


def _discard(part: Path) -> None:
    for path in (part, part.with_name(f"{part.name}.json")):
        with suppress(FileNotFoundError):
            path.unlink()
