"""Resumable transfers of files over HTTP.

A file is written as ``.NAME.part`` next to its target and renamed when complete. An interrupted
transfer resumes there if the server confirms that its file has not changed (``Range`` with
``If-Range``, RFC 9110, sections 13.1.5 and 14.2); otherwise it starts over.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from scimult import __version__
from scimult.disk_space import require_room
from scimult.errors import DataError
from scimult.files import read_json, storage_error, write_json
from scimult.progress import bar

T = TypeVar("T")

_BLOCK = 1 << 20
_TIMEOUT = 60.0
_WAITS = (1.0, 4.0, 15.0)
"""Seconds to wait before each retry."""


def fetch(url: str, path: Path, check: Callable[[Path], T]) -> T:
    """Download a file to ``path``; return what ``check`` says of its content.

    ``check`` gets the complete file before it has its name; if it raises a `DataError`, the file is
    removed.

    Raises
    ------
    DataError
        If the URL cannot be read. The part of an unfinished file stays.
    StorageError
        If the file cannot be written, or there is no room for it.
    """
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
        try:
            checked = check(part)
        except DataError:
            _discard(part)
            raise
        with part.open("rb") as content:
            os.fsync(content.fileno())
        os.replace(part, path)
        _discard(part)
    except OSError as error:
        raise storage_error(error, path) from error
    return checked


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


def _discard(part: Path) -> None:
    for path in (part, part.with_name(f"{part.name}.json")):
        with suppress(FileNotFoundError):
            path.unlink()
