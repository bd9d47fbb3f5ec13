"""One conversion of a download: what it reads, the sources that it writes, what came of them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scimult.data.lines import EXAMPLES_PER_REASON, Record, Rejects
from scimult.data.members import read_members
from scimult.errors import DataError
from scimult.files import read_json, sha256, write_json
from scimult.preparation.config import Dangling, PairTable, SourceConfig
from scimult.preparation.sources.raw import Makes, RawSource
from scimult.preparation.sources.readers import named_files
from scimult.preparation.steps import FILE_NAME as STEP_FILE
from scimult.preparation.steps import Steps
from scimult.progress import progress

REJECTS_FILE = "rejects.jsonl"
RESULT_FILE = "result.json"
# Marks, among the names of what a source reads, of what is no file.
LISTING = " : files named "
MATCHING = "files that match "
NO_CHECKSUM = "no checksum: "


class Conversion:
    """One conversion: where it reads, what it has written, what came of it.

    Each source that it writes is a step that is kept: found again in a later conversion with
    the same options that would read the same.

    Parameters
    ----------
    source : Path
        The folder that the user downloaded.
    steps : Steps
        Where finished sources are.
    inputs : mapping
        What all sources depend on besides what they read, as JSON values.
    dangling : mapping
        See ``SourceOptions``.
    skip_bad : bool
        Leave bad records out and count them.

    Attributes
    ----------
    rejects : Rejects
        Takes the bad records of the source that is being written.
    configs : list of SourceConfig
        The sources that were written, as prepare reads them.
    counts : dict
        What was counted, by source.
    notes : list of str
        What the user should know of the sources besides their counts.
    folders : dict
        Where the files of each source are.
    read : dict
        Everything that was read: name to its checksum, or the names in a folder.
    """

    def __init__(
        self,
        source: Path,
        steps: Steps,
        inputs: Mapping[str, Any],
        dangling: Mapping[PairTable, Dangling],
        *,
        skip_bad: bool = False,
    ) -> None:
        self.source, self._steps, self._inputs = source, steps, inputs
        self._dangling = dangling
        self.rejects = Rejects(skip_bad)
        self.configs: list[SourceConfig] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.notes: list[str] = []
        self.folders: dict[str, Path] = {}
        self.read: dict[str, Any] = {}
        self._looked: dict[str, Any] = {}

    def file(self, name: str, fix: str = "") -> Path:
        """Return the path of a needed file below the source; ``.gz`` is found by itself.

        Parameters
        ----------
        name : str
            Its path.
        fix : str
            Where it comes from, if not with the download.

        Raises
        ------
        DataError
            If it does not exist.
        """
        found = self.optional_file(name)
        if found is None:
            raise DataError(
                "file does not exist",
                path=self.source / name,
                fix=fix
                or "download it into this folder, or name another with --input; "
                "scimult prepare --list shows what each source needs",
            )
        return found

    def optional_file(self, name: str) -> Path | None:
        """Return the path of a file below the source if it is there, as it is or gzipped."""
        for there in (name, f"{name}.gz"):
            if self._note(there) is not None:
                return self.source / there
        return None

    def matching(self, names: Sequence[str], fix: str = "") -> list[Path]:
        """Return the files below the source that paths and globs name, in order.

        Raises
        ------
        DataError
            If one is not there, or a glob meets nothing.
        """
        found = []
        for name in names:
            if not glob.has_magic(name) or (self.source / name).exists():
                found.append(self.file(name, fix))
                continue
            there = self._note(f"{MATCHING}{name}")
            if not there:
                raise DataError("no file has such a name", path=self.source / name, fix=fix)
            for one in there:
                self._note(one)
            found.extend(self.source / one for one in there)
        return found

    def other_file(self, path: Path) -> Path:
        """Return the path of a file that need not be below the source."""
        self._note(str(path.resolve()))
        return path

    def files(self, folder: str, stem: str) -> list[Path]:
        """Return the files below the source that ``readers.named_files`` finds."""
        self._note(f"{folder}{LISTING}{stem}")
        found = named_files(self.source / folder, stem)
        for path in found:
            self._note(path.relative_to(self.source).as_posix())
        return found

    def not_repeatable(self, what: str) -> None:
        """Say that the source reads what has no checksum: it is never kept."""
        self._looked[f"{NO_CHECKSUM}{what}"] = "read again each time"

    def write(
        self,
        name: str,
        fill: Callable[[RawSource], None],
        makes: Sequence[Makes],
        *,
        dangling: Mapping[PairTable, Dangling] | None = None,
        **choices: Any,
    ) -> None:
        """Write a source, or find it written.

        Parameters
        ----------
        name : str
            Name of the source.
        fill : callable
            Writes everything into the ``RawSource`` it is given.
        makes : sequence of str
            What must come of it; nothing of one of them is an error.
        dangling : mapping, optional
            What is usual for this data; the user's choice goes before it.
        **choices
            Fields of the ``SourceConfig``.

        Raises
        ------
        DataError
            See ``RawSource.finish``.
        """
        if name in self.counts:
            return
        before, rejects = self._looked, self.rejects

        def make(folder: Path) -> dict[str, Any]:
            self._looked = dict(before)
            self.rejects = Rejects(rejects.skip_bad, folder / REJECTS_FILE)
            chosen = {**(dangling or {}), **self._dangling}
            with RawSource(folder, name, self.rejects, chosen) as raw:
                fill(raw)
                config = raw.finish(makes, **choices)
            left_out = {"counts": self.rejects.counts, "examples": self.rejects.examples}
            described = config.model_dump(mode="json", exclude_unset=True)
            result = {"config": described, "counts": raw.counts, "notes": raw.notes}
            tree = {**result, "rejects": left_out}
            write_json(folder / RESULT_FILE, tree)
            return self._looked

        try:
            step = self._steps.run_reading(name, self._inputs, self._look, make)
        finally:
            self._looked, self.rejects = before, rejects
        self._take(name, step.folder)

    def _take(self, name: str, folder: Path) -> None:
        """Enter a source that is written."""
        tree = read_json(folder / RESULT_FILE)
        self.configs.append(SourceConfig(**tree["config"]))
        self.counts[name] = tree["counts"]
        self.notes.extend(f"{name}: {note}" for note in tree["notes"])
        self.folders[name] = folder
        self.read.update(read_json(folder / STEP_FILE)["inputs"]["read"])
        self.rejects.counts.update(tree["rejects"]["counts"])
        for reason, examples in tree["rejects"]["examples"].items():
            known = self.rejects.examples.setdefault(reason, [])
            known.extend(examples[: EXAMPLES_PER_REASON - len(known)])

    def _note(self, what: str) -> Any:
        """Return what ``what`` is now, and keep it as something that the source depends on."""
        if what not in self._looked:
            self._looked[what] = self._look(what)
        return self._looked[what]

    def _look(self, what: str) -> Any:
        """Return the checksum of a file, or the names of a listing; ``None`` if it is not there."""
        if what.startswith(MATCHING):
            pattern = what.removeprefix(MATCHING)
            there = glob.glob(pattern, root_dir=self.source, recursive=True)
            return sorted(name for name in there if (self.source / name).is_file())
        folder, is_listing, stem = what.partition(LISTING)
        if is_listing:
            return [path.name for path in named_files(self.source / folder, stem)]
        path = self.source / what
        return sha256(path) if path.is_file() else None

    def each(self, records: Iterable[Record], handle: Callable[[Record], object]) -> None:
        """Handle every record, showing progress; one on which it raises is rejected."""
        for _ in progress(self.rejects.keep(records, handle), "rows", unit="row"):
            pass

    def each_member(self, file: str, handle: Callable[[str, Record], object]) -> None:
        """Handle every member of a big JSON object by name and value, as ``each`` does."""
        members = read_members(self.file(file), self.rejects)
        for name, record in progress(members, file, unit="row"):
            try:
                handle(name, record)
            except DataError as error:
                self.rejects.reject(error)
