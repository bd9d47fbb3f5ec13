"""What a public source is: where to get it, its files and options, how it becomes raw files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scimult.config import StrictConfig
from scimult.data.lines import Record, Rejects
from scimult.data.prepare_config import SourceConfig
from scimult.data.sources.raw import RawSource
from scimult.data.sources.readers import read_members
from scimult.errors import DataError, StorageError
from scimult.files import atomic_folder, read_json, write_json, write_text
from scimult.progress import progress

MANIFEST = "conversion.json"
SOURCES_FILE = "sources.yaml"
REJECTS_FILE = "rejects.jsonl"
VERSION = 1


class SourceOptions(StrictConfig):
    """Options that every source has.

    Parameters
    ----------
    check_counts : bool
        A count that differs from the published one is an error, not a note.
    """

    check_counts: bool = False


@dataclass
class Conversion:
    """The state of one conversion: where it reads, where it writes, what came of it.

    Parameters
    ----------
    source : Path
        The folder that the user downloaded.
    target : Path
        The raw folder.
    rejects : Rejects
        Takes bad records.
    configs : list of SourceConfig
        The sources that were written, as prepare reads them.
    counts : dict
        What was counted, by source.
    """

    source: Path
    target: Path
    rejects: Rejects
    configs: list[SourceConfig] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

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
        for path in (self.source / name, self.source / f"{name}.gz"):
            if path.is_file():
                return path
        return None

    def raw(self, name: str, **choices: bool) -> RawSource:
        """Return a new source to write; use it as a context and ``add`` it when it is full."""
        return RawSource(self.target, name, self.rejects, **choices)

    def add(self, raw: RawSource, **choices: Any) -> None:
        """Finish a source; ``choices`` are fields of its ``SourceConfig``.

        Raises
        ------
        DataError
            See ``RawSource.finish``.
        """
        self.configs.append(raw.finish(**choices))
        self.counts[raw.name] = dict(raw.counts)

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
    _refuse_to_overwrite(out)
    if not folder.exists():
        raise DataError("does not exist", path=folder, fix="name the downloaded folder (--input)")
    with atomic_folder(out) as temporary:
        rejects = Rejects(skip_bad, temporary / REJECTS_FILE)
        conversion = Conversion(folder, temporary, rejects)
        source.convert(conversion, options)
        notes = _differences(source, conversion.counts)
        if notes and options.check_counts:
            raise DataError(
                f"counts differ from the published ones: {'; '.join(notes)}",
                path=folder,
                fix="download the data again, or leave out check_counts",
            )
        _write_manifest(source, options, conversion, out, notes)
    return conversion, notes


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
    out: Path,
    notes: Sequence[str],
) -> None:
    """Write what prepare needs to go on, and what was counted."""
    configs = [config.model_dump(exclude_unset=True) for config in conversion.configs]
    configs = [{key: value for key, value in config.items() if value} for config in configs]
    configs = [{**config, "licence": source.licence} for config in configs]
    tree = {"root": str(out.resolve()), "sources": configs}
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    write_text(conversion.target / SOURCES_FILE, text)
    manifest = {
        "version": VERSION,
        "source": source.name,
        "url": source.url,
        "licence": source.licence,
        "input": str(conversion.source),
        "options": options.model_dump(mode="json"),
        "counts": conversion.counts,
        "differences": list(notes),
        "rejects": dict(conversion.rejects.counts),
    }
    write_json(conversion.target / MANIFEST, manifest)


def _refuse_to_overwrite(out: Path) -> None:
    """Only a raw folder of ours may be replaced: a wrong path must not delete anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    manifest = out / MANIFEST
    if not (manifest.is_file() and "source" in read_json(manifest)):
        fix = "choose a new folder, or empty this one yourself"
        raise StorageError("exists and is not a folder of raw files", path=out, fix=fix)
