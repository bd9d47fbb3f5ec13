"""Cache of finished preparation steps, so that a later run repeats only what changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scimult.errors import DataError, StorageError
from scimult.files import FolderKind, atomic_folder, checksums_below, read_json, sha256, write_json
from scimult.progress import note
from scimult.unfinished import remove_replaced

FILE_NAME = "step.json"
CHECKSUMS_FILE = "checksums.json"
STEP = FolderKind("a step of a preparation", lambda folder: (folder / FILE_NAME).is_file())


@dataclass(frozen=True)
class Step:
    """A finished step: the folder with its files, and the fingerprint of its inputs."""

    folder: Path
    fingerprint: str


class Steps:
    """One folder per step; each appears only when it is complete.

    ``folder`` only saves work: deleting it between runs is safe. ``verify`` compares the content of
    all files, inputs and outputs; by default a file with the path, size and time of the last run is
    assumed to be unchanged.
    """

    def __init__(self, folder: Path, *, verify: bool = False) -> None:
        self.folder, self._verify = folder, verify
        # Files that the next step reads, with their sizes, times and checksums.
        self._read: dict[Path, list[Any]] = {}

    def checksums(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Return the SHA-256 of each file, by its name; unchanged files are not read again."""
        path = self.folder / CHECKSUMS_FILE
        known, before = _read(path), _read(path)
        digests = {}
        for name, file in files.items():
            location, stamp = str(file.resolve()), _stamp(file)
            last = known.get(location)
            if self._verify or last is None or last[:-1] != stamp:
                known[location] = last = [*stamp, sha256(file)]
            digests[name] = last[-1]
            self._read[file] = last
        if known != before:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, known)
        return digests

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], None],
        *,
        quiet: bool = False,
    ) -> Step:
        """Return the step made from exactly these inputs, running it if necessary.

        A step is made again if its inputs (everything the result depends on, as JSON values:
        versions, options, checksums) differ or one of its files has changed. ``make`` writes the
        files into the folder it is given; a ``quiet`` step is not reported when it is reused.

        Raises
        ------
        DataError
            If a file changed after ``checksums`` had read it and before ``make`` ended.
        """
        read, self._read = self._read, {}
        folder = self.folder / name
        step = Step(folder, fingerprint(inputs))
        if self._is_intact(step):
            remove_replaced(folder)
            if not quiet:
                note(f"{name}: inputs unchanged, kept from {folder}")
            return step
        try:
            with atomic_folder(folder, STEP) as temporary:
                make(temporary)
                _check_unchanged(read)
                described = {"fingerprint": step.fingerprint, "inputs": inputs}
                write_json(temporary / FILE_NAME, {**described, "files": _files_below(temporary)})
        finally:
            with suppress(OSError):  # removes the folder only if it is empty
                self.folder.rmdir()
        return step

    def _is_intact(self, step: Step) -> bool:
        described = _read(step.folder / FILE_NAME)
        if described.get("fingerprint") != step.fingerprint:
            return False
        files = {}
        try:
            for name, (*stamp, checksum) in described["files"].items():
                file = step.folder / name
                now = _stamp(file)
                if (self._verify or now != stamp) and sha256(file) != checksum:
                    return False
                files[name] = [*now, checksum]
        except (OSError, KeyError, TypeError, ValueError):
            return False
        if files != described["files"]:  # a copy, which need not be read again
            with suppress(StorageError):
                write_json(step.folder / FILE_NAME, {**described, "files": files})
        return True


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return a short hash of JSON values."""
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_unchanged(files: Mapping[Path, Sequence[Any]]) -> None:
    """Check that files are still those whose stamps and checksums these are."""
    for file, (*stamp, checksum) in files.items():
        if not file.exists() or (_stamp(file) != stamp and sha256(file) != checksum):
            fix = "repeat the command when nothing writes this file"
            raise DataError("file changed while it was read", path=file, fix=fix)


def _files_below(folder: Path) -> dict[str, list[Any]]:
    """Return size, time and SHA-256 of every file below a folder, by relative path."""
    checksums = checksums_below(folder)
    return {name: [*_stamp(folder / name), checksum] for name, checksum in checksums.items()}


def _stamp(file: Path) -> list[int]:
    """Return a file's size and modification time."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; an empty one if the file is absent or damaged."""
    try:
        tree = read_json(path)
    except (DataError, OSError):
        return {}
    return tree if isinstance(tree, dict) else {}
