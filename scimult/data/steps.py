"""Finished steps of a preparation, kept so that a later run repeats only what changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scimult.errors import DataError
from scimult.files import atomic_folder, read_json, sha256, write_json
from scimult.progress import note

FILE_NAME = "step.json"


@dataclass(frozen=True)
class Step:
    """A finished step: the folder with its files, and the fingerprint of what made them."""

    folder: Path
    fingerprint: str


class Steps:
    """One folder per step; each appears only when it is complete.

    Parameters
    ----------
    folder : path
        Holds the steps. May be deleted at any time between runs: it only saves work.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], None]) -> Step:
        """Return the step made from exactly these inputs; make it if it is not there.

        A step whose inputs differ, or one of whose files does not have its checksum any
        more, is made again.

        Parameters
        ----------
        name : str
            Name of the step.
        inputs : mapping
            All that the result depends on, as JSON values: versions, options, checksums.
        make : callable
            Writes the files of the step into the folder it is given.
        """
        text = json.dumps(inputs, sort_keys=True)
        step = Step(self.folder / name, hashlib.sha256(text.encode()).hexdigest()[:16])
        if _is_intact(step):
            note(f"{name}: inputs unchanged, kept from {step.folder}")
            return step
        try:
            with atomic_folder(step.folder) as temporary:
                make(temporary)
                sums = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
                described = {"fingerprint": step.fingerprint, "inputs": inputs, "files": sums}
                write_json(temporary / FILE_NAME, described)
        finally:
            with suppress(OSError):  # an empty folder of steps is of no use
                self.folder.rmdir()
        return step


def checksums(paths: list[Path]) -> list[str]:
    """Return the SHA-256 of each file."""
    return [sha256(path) for path in paths]


def _is_intact(step: Step) -> bool:
    try:
        described = read_json(step.folder / FILE_NAME)
        return bool(
            described["fingerprint"] == step.fingerprint
            and all(sha256(step.folder / name) == s for name, s in described["files"].items())
        )
    except (DataError, OSError, KeyError, TypeError):
        return False
