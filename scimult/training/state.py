"""Resume state on disk: whole checkpoints only, newest first, damaged ones named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scimult import distributed
from scimult.errors import CheckpointError, SciMultError
from scimult.files import publish_folder, read_json, sha256, storage_error, write_json
from scimult.progress import note

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    info: dict[str, Any]


class CheckpointStore:
    """The folder ``checkpoints`` of a run.

    A checkpoint is written under a temporary name, listed with its checksums, and renamed
    when every rank has finished: a killed job leaves the one before it in place.

    Parameters
    ----------
    folder : Path
        Where ``step-NNNNNNN`` folders go.
    keep : int
        Newest checkpoints that are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, step: int, write: Callable[[Path], None], info: dict[str, Any]) -> None:
        """Save one checkpoint; every rank must call it.

        Parameters
        ----------
        step : int
            Optimizer steps done.
        write : callable
            Writes this rank's files below the folder it is given.
        info : dict
            JSON values to find again at resume.

        Raises
        ------
        StorageError
            On every rank, if any of them could not write. The older checkpoints remain.
        """
        final = self.folder / f"step-{step:07d}"
        temporary = self.folder / f".{final.name}.tmp"
        if distributed.is_main():
            shutil.rmtree(temporary, ignore_errors=True)
        self._together(lambda: temporary.mkdir(parents=True, exist_ok=True), temporary)
        self._together(lambda: write(temporary), temporary)

        def publish() -> None:
            if distributed.is_main():
                write_json(temporary / _MANIFEST, {"step": step, **info, "files": _list(temporary)})
                publish_folder(temporary, final)
                self._prune()

        self._together(publish, temporary)

    def newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, on every rank the same; ``None`` if there is none.

        Damaged checkpoints are passed over with a warning that names them.
        """
        found = self._find() if distributed.is_main() else None
        checkpoint: Checkpoint | None = distributed.broadcast_object(found)
        return checkpoint

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of one step.

        Raises
        ------
        CheckpointError
            If there is none, or it is damaged.
        """
        path = self.folder / f"step-{step:07d}"
        if not path.is_dir():
            kept = [str(int(found.name[5:])) for found in sorted(self.folder.glob("step-*"))]
            raise CheckpointError(
                "no checkpoint of this step",
                path=self.folder,
                value=step,
                fix=f"use one of {', '.join(kept) or '(none is kept)'}",
            )
        return verify(path)

    def _find(self) -> Checkpoint | None:
        for path in sorted(self.folder.glob("step-*"), reverse=True):
            try:
                return verify(path)
            except SciMultError as error:
                note(f"checkpoint {path.name} is damaged and passed over: {error}")
        return None

    def _together(self, work: Callable[[], None], path: Path) -> None:
        """Run ``work`` on every rank; if it fails on one, fail on all with its message."""
        problem: Exception | None = None
        try:
            work()
        except (OSError, RuntimeError) as error:
            problem = error
        messages = [m for m in distributed.all_gather_objects(problem and str(problem)) if m]
        if not messages:
            return
        if distributed.is_main():
            shutil.rmtree(path, ignore_errors=True)
        if isinstance(problem, OSError):
            raise storage_error(problem, path) from problem
        raise CheckpointError(f"checkpoint could not be written: {messages[0]}", path=path)

    def _prune(self) -> None:
        for old in sorted(self.folder.glob("step-*"))[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)


def _list(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def verify(path: Path) -> Checkpoint:
    """Return a checkpoint after comparing every file with its checksum.

    Raises
    ------
    CheckpointError, DataError
        Naming the file that is missing, truncated or changed.
    """
    manifest = read_json(path / _MANIFEST)
    for name, listed in manifest["files"].items():
        file = path / name
        if not file.is_file() or file.stat().st_size != listed["bytes"]:
            raise CheckpointError("file is missing or truncated", path=file)
        if sha256(file) != listed["sha256"]:
            raise CheckpointError("file has changed since it was written", path=file)
    info = {key: value for key, value in manifest.items() if key not in ("step", "files")}
    return Checkpoint(path, int(manifest["step"]), info)
