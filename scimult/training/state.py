"""Checkpoints on disk: written atomically, verified by checksums, pruned."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from scimult import distributed
from scimult.errors import CheckpointError, SciMultError
from scimult.files import publish_folder, read_json, sha256, storage_error, write_json
from scimult.locks import OLD, UNFINISHED
from scimult.progress import warn

_MANIFEST = "manifest.json"
_STEP = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    info: dict[str, Any]


class CheckpointStore:
    """The folder ``checkpoints`` of a run.

    A checkpoint is written under a temporary name, listed with its checksums, and renamed
    when every rank has finished: a killed job leaves the previous one in place. The ``keep``
    newest ones stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        info: dict[str, Any],
        best: int | None = None,
    ) -> None:
        """Save one checkpoint; every rank must call it.

        ``write`` writes this rank's files below the given folder, ``info`` has JSON values for
        resuming, and the checkpoint of the step ``best`` is kept as long as this one.

        Raises
        ------
        StorageError
            On every rank, if any of them could not write. The older checkpoints remain.
        """
        final = self.folder / _name(step)
        temporary = self.folder / f".{final.name}{UNFINISHED}"
        if distributed.is_main():
            for ending in (UNFINISHED, OLD):
                for leftover in self.folder.glob(f".step-*{ending}"):
                    shutil.rmtree(leftover, ignore_errors=True)
        self._together(lambda: temporary.mkdir(parents=True, exist_ok=True), temporary)
        self._together(lambda: write(temporary), temporary)

        def publish() -> None:
            if distributed.is_main():
                manifest = _Manifest(step=step, best=best, info=info, files=_list(temporary))
                signed = {"manifest": manifest.model_dump(), "sha256": manifest.digest()}
                write_json(temporary / _MANIFEST, signed)
                publish_folder(temporary, final)
                self.prune(step)

        self._together(publish, temporary)

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; ``None`` if there are no checkpoints.

        Damaged ones are skipped with a warning, but not all of them.

        Raises
        ------
        CheckpointError
            If there are checkpoints and all are damaged.
        """
        checkpoints = step_folders(self.folder)
        for path in reversed(checkpoints):
            try:
                return verify(path)
            except SciMultError as error:
                warn(f"skipping damaged checkpoint {path.name}: {error}")
        if checkpoints:
            raise CheckpointError(
                "every checkpoint is damaged",
                path=self.folder,
                value=[path.name for path in checkpoints],
                fix="restore one from a backup, or remove the folder to start over",
            )
        return None

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of one step.

        Raises
        ------
        CheckpointError
            If there is none, or it is damaged.
        """
        path = self.folder / _name(step)
        if not path.is_dir():
            steps = [str(_step_of(folder)) for folder in step_folders(self.folder)]
            raise CheckpointError(
                "no checkpoint of this step",
                path=self.folder,
                value=step,
                fix=f"use one of {', '.join(steps) or '(there are none)'}",
            )
        return verify(path)

    def has(self, step: int) -> bool:
        """Return whether there is a checkpoint of a step, intact or damaged."""
        return (self.folder / _name(step)).is_dir()

    def _together(self, work: Callable[[], None], path: Path) -> None:
        """Run ``work`` on every rank; if it fails on one, raise on all with its message."""
        problem: Exception | None = None
        try:
            work()
        except (OSError, RuntimeError, SciMultError) as error:
            problem = error
        messages = [m for m in distributed.all_gather_objects(problem and str(problem)) if m]
        if not messages:
            return
        if distributed.is_main():
            shutil.rmtree(path, ignore_errors=True)
        if isinstance(problem, OSError):
            raise storage_error(problem, path) from problem
        if isinstance(problem, SciMultError):
            raise problem
        raise CheckpointError(f"checkpoint could not be written: {messages[0]}", path=path)

    def prune(self, step: int) -> None:
        """Remove all but the newest checkpoints up to ``step`` and the best ones they name.

        Later ones are damaged, or the run would have continued from them: they are ignored
        here, and replaced when their step is repeated.
        """
        checkpoints = [path for path in step_folders(self.folder) if _step_of(path) <= step]
        newest = checkpoints[-self._keep :]
        needed = {*newest, *(self._best_of(path) for path in newest)}
        for old in checkpoints:
            if old not in needed:
                shutil.rmtree(old, ignore_errors=True)

    def _best_of(self, path: Path) -> Path | None:
        try:
            best = _read_manifest(path).best
        except SciMultError:
            return None
        return None if best is None else self.folder / _name(best)


def _name(step: int) -> str:
    return f"step-{step:07d}"


def step_folders(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, intact or damaged, oldest first."""
    # People keep copies of other names beside them.
    named = (path for path in folder.glob("step-*") if _STEP.fullmatch(path.name))
    return sorted(named, key=_step_of)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


class _File(BaseModel):
    bytes: int
    sha256: str


class _Manifest(BaseModel):
    """The content of ``manifest.json``, apart from its own digest."""

    step: int
    best: int | None
    info: dict[str, Any]
    files: dict[str, _File]

    def digest(self) -> str:
        text = json.dumps(self.model_dump(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _list(folder: Path) -> dict[str, _File]:
    return {
        str(file.relative_to(folder)): _File(bytes=file.stat().st_size, sha256=sha256(file))
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def verify(path: Path) -> Checkpoint:
    """Check every file of a checkpoint against its checksum and return the checkpoint.

    Raises
    ------
    CheckpointError, DataError
        Naming the file that is missing, truncated or changed.
    """
    manifest = _read_manifest(path)
    for name, listed in manifest.files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != listed.bytes:
            raise CheckpointError("file is missing or truncated", path=file)
        if sha256(file) != listed.sha256:
            raise CheckpointError("file has changed since it was written", path=file)
    return Checkpoint(path, manifest.step, manifest.info)


def newest_info(folder: Path) -> dict[str, Any]:
    """Return the ``info`` of the newest checkpoint whose manifest is intact."""
    for path in reversed(step_folders(folder)):
        try:
            return _read_manifest(path).info
        except SciMultError:
            continue
    return {}


def _read_manifest(path: Path) -> _Manifest:
    file = path / _MANIFEST
    signed = read_json(file)
    try:
        manifest = _Manifest.model_validate(signed["manifest"])
        intact = manifest.digest() == signed["sha256"] and path.name == _name(manifest.step)
    except (ValidationError, TypeError, KeyError):
        intact = False
    if not intact:
        raise CheckpointError("manifest is damaged", path=file, fix="use another checkpoint")
    return manifest
