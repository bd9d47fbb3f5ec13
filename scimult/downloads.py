"""Files from public addresses: resumed where they stopped, and checked.

A file is written beside its place as ``.NAME.part`` and takes its name when it is whole. A download
that was stopped goes on from there, if the server says that its file is still the same one
(``Range`` with ``If-Range``, RFC 9110, sections 13.1.5 and 14.2); else it begins anew.

Every file is compared with a checksum: the one that its owners publish (SHA-256 or MD5) or, where
they publish none, the SHA-256 of the first download, which is kept in ``.downloads.json`` of the
folder (trust on first use: later changes are noticed, a wrong first download is not).

An archive is fetched in the same way, gives the files that are wanted of it, and is deleted. Killed
in between, it lies there, and the next call takes out what is still missing.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
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
from scimult.errors import DataError
from scimult.files import (
    only_writer,
    read_json,
    require_room,
    sha256,
    storage_error,
    write_json,
)
from scimult.progress import bar

RECORD = ".downloads.json"
_BLOCK = 1 << 20
_TIMEOUT = 60.0
_WAITS = (1.0, 4.0, 15.0)
"""Seconds before each further try."""


@dataclass(frozen=True)
class Remote:
    """A file, and where it is.

    Attributes
    ----------
    name : str
        Where it goes, relative to the folder of the download.
    url : str
        Its address.
    sha256, md5 : str, optional
        Of its content, where it is known; MD5 is what some owners publish.
    """

    name: str
    url: str
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Archive(Remote):
    """An archive whose files go into the folder where it lies.

    Attributes
    ----------
    wanted : tuple of str
        Which of them, as paths or globs, in which ``*`` also meets ``/``.
    strip : int
        Leading folders of its own paths that are left out.
    """

    wanted: tuple[str, ...] = ()
    strip: int = 0


def address(base: str, name: str) -> str:
    """Return the address of a file below ``base``."""
    return f"{base.rstrip('/')}/{quote(name)}"


def download(
    files: Iterable[Remote], folder: Path, on_file: Callable[[Path], None] = lambda path: None
) -> list[Path]:
    """Get files that are not there, and check those that were got before.

    Parameters
    ----------
    files : iterable of Remote
        What to get.
    folder : Path
        Where the files go; its ``.downloads.json`` says what came from where.
    on_file : callable
        Is told the path of each file before it is read.

    Returns
    -------
    list of Path
        The files that were downloaded now.

    Raises
    ------
    DataError
        If an address cannot be read, or a file is not the one that is known. Files that were
        finished stay, and so does what came of the one that was not.
    StorageError
        If the folder cannot be written, has no room, or another process downloads into it.
    """
    got: list[Path] = []
    with only_writer(folder / ".downloading"):
        for file in files:
            if isinstance(file, Archive):
                got += _unpacked(file, folder, on_file)
            elif not _is_here(file, folder):
                on_file(folder / file.name)
                _get(file, folder)
                got.append(folder / file.name)
    return got


def _is_here(file: Remote, folder: Path) -> bool:
    """Return whether a file is there, compared if it was downloaded before."""
    path, known = folder / file.name, _record(folder)
    if path.exists() and file.name in known:
        _check(sha256(path), file.sha256 or known[file.name]["sha256"], path, file.url)
    return path.exists()


def _get(file: Remote, folder: Path) -> None:
    path = folder / file.name
    expected = file.sha256 or _record(folder).get(file.name, {}).get("sha256")
    _note(file.url, path, _fetch(file, path, expected), folder)


def _note(url: str, path: Path, digest: str, folder: Path) -> None:
    name, entry = _below(path, folder), {"sha256": digest, "bytes": path.stat().st_size}
    write_json(folder / RECORD, {**_record(folder), name: {"url": url, **entry}})


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _unpacked(archive: Archive, folder: Path, on_file: Callable[[Path], None]) -> list[Path]:
    """Take what is missing out of an archive, which is fetched if it has to be."""
    path, got = folder / archive.name, []
    # What a glob stands for is known once the archive was read through.
    met = _record(folder).get(archive.name, {}).get("unpacked", {})

    def has(name: str) -> bool:
        return _is_here(Remote(_below(path.parent / name, folder), archive.url), folder)

    missing = [p for p in archive.wanted if not all(map(has, met.get(p, [p])))]
    if not missing:
        return []
    if not _is_here(archive, folder):
        on_file(path)
        _get(archive, folder)

    def note(unpacked: Path) -> None:
        _note(archive.url, unpacked, sha256(unpacked), folder)
        got.append(unpacked)

    found = unpack(path, path.parent, missing, archive.strip, note)
    record = _record(folder)
    if archive.name in record:  # else the user put it there
        entry = {**record[archive.name], "unpacked": {**met, **found}}
        write_json(folder / RECORD, {**record, archive.name: entry})
        path.unlink()
    return got


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        fix = "delete it: files are then downloaded and trusted anew"
        raise DataError("not a record of downloads", path=path, fix=fix)
    return found


def _fetch(file: Remote, path: Path, expected: str | None) -> str:
    """Bring one file to its place; return its SHA-256."""
    url = file.url
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for wait in (*_WAITS, None):
            try:
                _read_on(url, part)
                break
            except (OSError, http.client.HTTPException) as error:
                if wait is None or not _passes(error):
                    raise _unreachable(error, url, path) from error
                time.sleep(wait)
        digest = sha256(part)
        try:
            _check(digest, expected, path, url)
            if file.md5 is not None:
                _check(_md5(part), file.md5, path, url, "MD5")
        except DataError:
            _forget(part)
            raise
        with part.open("rb") as content:
            os.fsync(content.fileno())
        os.replace(part, path)
        _forget(part)
    except OSError as error:
        raise storage_error(error, path) from error
    return digest


def _read_on(url: str, part: Path) -> None:
    """Read what ``part`` lacks, or all of it where the server does not go on."""
    state = part.with_name(f"{part.name}.json")
    start, validator = _progress_of(part, state, url)
    # Compressed on the way, a file's bytes could not be counted.
    headers = {"User-Agent": f"scimult/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code == 416:  # nothing is left of the range: begin anew
            _forget(part)
            raise ConnectionResetError("the server's file is another one now") from error
        raise
    with answer:
        goes_on = answer.status == 206 and _begins_at(answer.headers, start)
        if answer.status == 206 and not goes_on:
            _forget(part)
            raise ConnectionResetError("the server sent another range than was asked for")
        start = start if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if total is not None:
            require_room(part.parent, total - start, "downloads")
        if not goes_on:
            # Old bytes must never stand beside the new file's mark.
            _forget(part)
            told = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            write_json(state, {"url": url, "validator": told})
        with (
            part.open("r+b" if goes_on else "wb") as file,
            bar(part.name[1:-5], total=total, unit="B", initial=start) as meter,
        ):
            file.seek(start)
            while block := answer.read1(_BLOCK):
                file.write(block)
                meter.update(len(block))
            got = file.tell()
    if total is not None and got < total:
        raise http.client.IncompleteRead(b"", total - got)


def _progress_of(part: Path, state: Path, url: str) -> tuple[int, str]:
    """Return how many bytes are there of this address's file, and what tells it from others.

    A weak validator (``W/``) may stand for other bytes and is not used.
    """
    if not (part.exists() and state.exists()):
        return 0, ""
    try:
        kept = read_json(state)
    except DataError:  # killed while it was written
        return 0, ""
    validator = kept.get("validator") if isinstance(kept, dict) else None
    if not validator or validator.startswith("W/") or kept.get("url") != url:
        return 0, ""
    return part.stat().st_size, str(validator)


def _begins_at(headers: Any, start: int) -> bool:
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
    return found is not None and int(found[1]) == start


def _passes(error: BaseException) -> bool:
    """Return whether another try may help: not where the server says no, or our disk fails."""
    if isinstance(error, HTTPError):
        return error.code in (408, 425, 429) or error.code >= 500
    return isinstance(error, (URLError, ConnectionError, TimeoutError, http.client.HTTPException))


def _unreachable(error: BaseException, url: str, path: Path) -> Exception:
    if isinstance(error, (URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
        told = str(error) or type(error).__name__
        fix = "run the command again, which goes on where it stopped, or get the file yourself"
        if isinstance(error, HTTPError) and not _passes(error):
            fix = "get the file yourself: its owners may have moved it"
        return DataError(f"cannot read {url}: {told}", path=path, fix=fix)
    assert isinstance(error, OSError)
    return error


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _check(found: str, expected: str | None, path: Path, url: str, kind: str = "SHA-256") -> None:
    if expected is not None and found != expected.lower():
        raise DataError(
            f"is not the file that is known from {url}: its {kind} is {found}, and not {expected}",
            path=path,
            fix=f"delete it to get it again; if its owners changed it, its entry in {RECORD} too",
        )


def _forget(part: Path) -> None:
    for path in (part, part.with_name(f"{part.name}.json")):
        with suppress(FileNotFoundError):
            path.unlink()
