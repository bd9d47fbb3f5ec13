"""Public sources: where to get them, their files and options, and their conversion."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scimult.config import StrictConfig, yaml_text
from scimult.downloads import Remote
from scimult.errors import DataError
from scimult.files import (
    FolderKind,
    atomic_folder,
    checksums_below,
    holds_only,
    link_or_copy,
    read_json,
    write_json,
    write_text,
)
from scimult.preparation.config import Dangling, PairTable
from scimult.preparation.sources.conversion import REJECTS_FILE, Conversion
from scimult.preparation.steps import Steps

MANIFEST = "conversion.json"
SOURCES_FILE = "sources.yaml"
VERSION = 4


def _is_raw(folder: Path) -> bool:
    manifest = read_json(folder / MANIFEST)
    ours = isinstance(manifest, dict) and "source" in manifest
    return ours and holds_only(folder, [MANIFEST, *manifest["files"]])


RAW = FolderKind("a folder of raw files and nothing else", _is_raw)


class SourceOptions(StrictConfig):
    """Options of every source.

    Parameters
    ----------
    check_counts : bool
        Treat a count that differs from the published one as an error instead of a note.
    dangling : mapping
        For citations, references, links and judgments, ``error`` or ``drop``: what to do with
        pairs that name a paper or query without a text. Dropped pairs are counted, not listed:
        most references of a real dump lead out of it.
    """

    check_counts: bool = False
    dangling: dict[PairTable, Dangling] = {}


@dataclass(frozen=True)
class PublicSource:
    """One public data set or layout.

    Parameters
    ----------
    name : str
        Name on the command line, after ``scimult prepare``.
    title : str
        Short description.
    url, licence : str
        Where to get it, and its terms as its owners state them.
    files : tuple of str
        The files it needs, relative to ``--input``.
    options : type
        Class of its options.
    convert : callable
        Reads the public files and writes raw sources.
    download : callable, optional
        Returns the files that given options need and that can be downloaded.
    published : mapping
        Published counts, by source and name, to compare with those of a conversion.
    """

    name: str
    title: str
    url: str
    licence: str
    files: tuple[str, ...]
    options: type[SourceOptions]
    convert: Callable[[Conversion, Any], None]
    download: Callable[[Any], list[Remote]] | None = None
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def convert(
    source: PublicSource,
    options: SourceOptions,
    folder: Path,
    out: Path,
    *,
    skip_bad: bool = False,
    for_training: bool = False,
    verify: bool = False,
) -> tuple[Conversion, list[str]]:
    """Turn a downloaded data set into raw files; ``out`` appears only when it is complete.

    An earlier conversion is replaced. ``sources.yaml`` in ``out`` is a configuration for ``scimult
    prepare --config``, and ``conversion.json`` has the counts. Finished sources are cached next to
    it in ``.OUT.steps``, so that an interrupted or repeated conversion can reuse them; ``verify``
    compares files with the last run by content, not only by size and time. ``for_training`` makes
    it an error if nothing pairs the papers.

    Return the conversion, and the counts that differ from the published ones.

    Raises
    ------
    DataError
        If a file is missing, at the first bad record, if nothing is left, or if counts differ
        and ``check_counts`` is set.
    StorageError
        If ``out`` holds something else, or cannot be written.
    """
    choices = options.model_dump(mode="json", exclude={"check_counts"})
    inputs = {"version": VERSION, "source": source.name, "options": choices, "skip_bad": skip_bad}
    with atomic_folder(out, RAW) as temporary:
        if not folder.exists():
            fix = "name the downloaded folder (--input)"
            raise DataError("does not exist", path=folder, fix=fix)
        steps = Steps(out.with_name(f".{out.name}.steps"), verify=verify)
        conversion = Conversion(folder, steps, inputs, options.dangling, skip_bad=skip_bad)
        source.convert(conversion, options)
        if for_training and not any(config.parts for config in conversion.configs):
            raise _nothing_to_pair(source, conversion, out)
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


def _nothing_to_pair(source: PublicSource, conversion: Conversion, raw: Path) -> DataError:
    names = [config.name for config in conversion.configs]
    notes = "".join(f"; {note}" for note in conversion.notes) + conversion.rejects.because()
    return DataError(
        f"papers without labels, citations, links or queries: there is nothing to train on{notes}",
        fix=f"to search them, run scimult prepare {source.name} ... --raw {raw} without --out, "
        f"then scimult search --papers {raw / names[0]}; to train, add files that pair them, or "
        f"pair titles with abstracts: 'prepare.self_supervision=[{{source: {names[0]}, view: "
        "title_to_abstract, task: search}]'",
    )


def _link_sources(conversion: Conversion, target: Path) -> None:
    """Link the files of all sources into one folder, and concatenate their rejects."""
    for name, folder in conversion.folders.items():
        shutil.copytree(folder / name, target / name, copy_function=link_or_copy)
        if (folder / REJECTS_FILE).exists():
            with (target / REJECTS_FILE).open("ab") as file:
                file.write((folder / REJECTS_FILE).read_bytes())


def _differences(source: PublicSource, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Describe each count that differs from the published one."""
    return [
        f"{name}: {what}: {counts[name][what]:,}, published {number:,}"
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
    """Write the configuration for prepare, and the manifest with counts and checksums."""
    configs = [config.model_dump(exclude_unset=True) for config in conversion.configs]
    configs = [{key: value for key, value in config.items() if value} for config in configs]
    configs = [{**config, "licence": source.licence} for config in configs]
    tree = {"root": str(out.resolve()), "sources": configs}
    write_text(target / SOURCES_FILE, yaml_text(tree))
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
