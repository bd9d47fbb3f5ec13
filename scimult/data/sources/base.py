"""What a public source is: where to get it, its files and options, how it becomes raw files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scimult.config import StrictConfig
from scimult.data.lines import EXAMPLES_PER_REASON, Record, Rejects
from scimult.data.prepare_config import SourceConfig
from scimult.data.sources.raw import RawSource
from scimult.data.sources.readers import named_files, read_members
from scimult.data.steps import FILE_NAME as STEP_FILE
from scimult.data.steps import Steps, checksums_below
from scimult.errors import DataError
from scimult.files import (
    FolderKind,
    atomic_folder,
    link_or_copy,
    read_json,
    sha256,
    write_json,
    write_text,
)
from scimult.progress import progress

MANIFEST = "conversion.json"
SOURCES_FILE = "sources.yaml"
REJECTS_FILE = "rejects.jsonl"
RESULT_FILE = "result.json"
VERSION = 2
RAW = FolderKind(
    "a folder of raw files",
    lambda folder: (folder / MANIFEST).is_file() and "source" in read_json(folder / MANIFEST),
)
# Marks, among the names of what a source reads, of what is no file.
LISTING = " : files named "
NO_CHECKSUM = "no checksum: "


class SourceOptions(StrictConfig):
    """Options that every source has.

    Parameters
    ----------
    check_counts : bool
        A count that differs from the published one is an error, not a note.
    """

    check_counts: bool = False


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
        self, source: Path, steps: Steps, inputs: Mapping[str, Any], *, skip_bad: bool = False
    ) -> None:
        self.source, self._steps, self._inputs = source, steps, inputs
        self.rejects = Rejects(skip_bad)
        self.configs: list[SourceConfig] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.notes: list[str] = []
        self.folders: dict[str, Path] = {}
        self.read: dict[str, Any] = {}
        self._looked: dict[str, Any] = {}

    def file(self, name: str) -> Path:
        """Return the path of a needed file below the source; ``.gz`` is found by itself.

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
                fix="download it, or name the right folder with --input; "
                "scimult prepare --list shows what each source needs",
            )
        return found

    def optional_file(self, name: str) -> Path | None:
        """Return the path of a file below the source if it is there, as it is or gzipped."""
        for there in (name, f"{name}.gz"):
            if self._note(there) is not None:
                return self.source / there
        return None

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
        *,
        dangling_is_normal: bool = False,
        **choices: Any,
    ) -> None:
        """Write a source, or find it written.

        Parameters
        ----------
        name : str
            Name of the source.
        fill : callable
            Writes everything into the ``RawSource`` it is given.
        dangling_is_normal : bool
            See ``RawSource``.
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
            choice = {"dangling_is_normal": dangling_is_normal}
            with RawSource(folder, name, self.rejects, **choice) as raw:
                fill(raw)
                config = raw.finish(**choices)
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


@dataclass(frozen=True)
class PublicSource:
    """One public data set or layout.

    Parameters
    ----------
    name : str
        What the user writes after ``scimult prepare``.
    title : str
        What it is, in a few words.
    url, licence : str
        Where to get it, and its terms as its owners state them.
    files : tuple of str
        The files it needs, relative to ``--input``.
    options : type
        Its options.
    convert : callable
        Reads the public files and writes raw sources.
    published : mapping
        Published counts by source and count; those that were taken are compared.
    """

    name: str
    title: str
    url: str
    licence: str
    files: tuple[str, ...]
    options: type[SourceOptions]
    convert: Callable[[Conversion, Any], None]
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def convert(
    source: PublicSource,
    options: SourceOptions,
    folder: Path,
    out: Path,
    *,
    skip_bad: bool = False,
) -> tuple[Conversion, list[str]]:
    """Turn a downloaded data set into raw files; ``out`` appears only when it is complete.

    Parameters
    ----------
    source : PublicSource
        Which data set.
    options : SourceOptions
        Its options.
    folder : path
        What the user downloaded.
    out : path
        The raw folder to write; an earlier conversion is replaced. ``sources.yaml`` in it is a
        configuration for ``scimult prepare --config``, ``conversion.json`` has the counts.
        Sources that are finished are kept in ``.OUT.steps`` beside it, for a conversion that
        was interrupted, or is done again.
    skip_bad : bool
        Leave bad records out and count them, instead of stopping at the first.

    Returns
    -------
    conversion : Conversion
        Configurations, counts and what was left out.
    notes : list of str
        Counts that differ from the published ones.

    Raises
    ------
    DataError
        If a file is missing, at the first bad record, or if counts differ and that was to be
        checked.
    StorageError
        If ``out`` holds something else, or cannot be written.
    """
    if not folder.exists():
        raise DataError("does not exist", path=folder, fix="name the downloaded folder (--input)")
    chosen = options.model_dump(mode="json", exclude={"check_counts"})
    inputs = {"version": VERSION, "source": source.name, "options": chosen, "skip_bad": skip_bad}
    with atomic_folder(out, RAW) as temporary:
        steps = Steps(out.with_name(f".{out.name}.steps"))
        conversion = Conversion(folder, steps, inputs, skip_bad=skip_bad)
        source.convert(conversion, options)
        notes = _differences(source, conversion.counts)
        if notes and options.check_counts:
            raise DataError(
                f"counts differ from the published ones: {'; '.join(notes)}",
                path=folder,
                fix="download the data again, or leave out check_counts",
            )
        _link_sources(conversion, temporary)
        _write_manifest(source, options, conversion, temporary, out, notes)
    return conversion, notes


def _link_sources(conversion: Conversion, target: Path) -> None:
    """Put the files of all sources together."""
    for name, folder in conversion.folders.items():
        shutil.copytree(folder / name, target / name, copy_function=link_or_copy)
        if (folder / REJECTS_FILE).exists():
            with (target / REJECTS_FILE).open("ab") as file:
                file.write((folder / REJECTS_FILE).read_bytes())


def _differences(source: PublicSource, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return one sentence per published count that was not met."""
    return [
        f"{name}: {counts[name][what]:,} {what}, published {number:,}"
        for name, published in source.published.items()
        if name in counts
        for what, number in published.items()
        if counts[name].get(what, number) != number
    ]


def _write_manifest(
    source: PublicSource,
    options: SourceOptions,
    conversion: Conversion,
    target: Path,
    out: Path,
    notes: Sequence[str],
) -> None:
    """Write what prepare needs to go on, what was counted, and what it was made from."""
    configs = [config.model_dump(exclude_unset=True) for config in conversion.configs]
    configs = [{key: value for key, value in config.items() if value} for config in configs]
    configs = [{**config, "licence": source.licence} for config in configs]
    tree = {"root": str(out.resolve()), "sources": configs}
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    write_text(target / SOURCES_FILE, text)
    manifest = {
        "version": VERSION,
        "source": source.name,
        "url": source.url,
        "licence": source.licence,
        "input": str(conversion.source),
        "options": options.model_dump(mode="json"),
        "counts": conversion.counts,
        "notes": conversion.notes,
        "differences": list(notes),
        "rejects": dict(conversion.rejects.counts),
        "read": conversion.read,
        "files": checksums_below(target),
    }
    write_json(target / MANIFEST, manifest)
