"""Benchmark data: download from the hub, read in every layout, check before scoring."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from scimult.data.packed import packed_or_plain
from scimult.data.records import Rejects
from scimult.downloads import Archive, Remote, address
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark, HubFile
from scimult.evaluation.formats import (
    csfcube,
    doris_mae,
    litsearch,
    mdcr,
    native,
    s2and,
    scidocs,
    scimult,
    scirepeval,
    scirepeval_training,
)
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.task_data import TaskData
from scimult.files import atomic_file
from scimult.reach import offline_if_cut_off


class _Layout(Protocol):
    """A module that reads one layout: the files it needs in a folder, and what they become."""

    @property
    def needed(self) -> Callable[[Benchmark, Path], list[str]]: ...
    @property
    def read(self) -> Callable[[Source], TaskData]: ...


FORMATS: dict[str, _Layout] = {
    "native": native,
    "scirepeval": scirepeval,
    "scirepeval_training": scirepeval_training,
    "scidocs": scidocs,
    "scimult": scimult,
    "mdcr": mdcr,
    "s2and": s2and,
    "csfcube": csfcube,
    "doris_mae": doris_mae,
    "litsearch": litsearch,
}


def read_dataset(
    name: str, benchmark: Benchmark, root: Path, how_to_get: str, rejects: Rejects
) -> TaskData:
    """Read the files of a benchmark below ``root``.

    Raises
    ------
    DataError
        If a file is missing (the message says how to get it), the counts belong to another
        edition than the benchmark's or, through ``rejects``, a record is bad.
    """
    missing = missing_files(benchmark, root)
    if missing:
        names = ", ".join(str(path) for path in missing)
        untold = (benchmark.hub or benchmark.remote) and "--download" not in how_to_get
        fix = f"{how_to_get}; or scimult evaluate --download" if untold else how_to_get
        raise DataError(f"data of {name} is missing: {names}", fix=fix)
    paths = _needed(benchmark, root)
    source = Source(name, benchmark, root / benchmark.folder, paths, rejects)
    dataset = FORMATS[benchmark.format].read(source)
    _check_counts(dataset, benchmark)
    return dataset


def missing_files(benchmark: Benchmark, root: Path) -> list[Path]:
    """Return the needed files that exist neither as named nor compressed."""
    return [path for path in _needed(benchmark, root) if not path.exists()]


def _needed(benchmark: Benchmark, root: Path) -> list[Path]:
    folder = root / benchmark.folder
    return [
        packed_or_plain(folder / name)
        for name in FORMATS[benchmark.format].needed(benchmark, folder)
    ]


def remote_files(benchmark: Benchmark, root: Path) -> list[Remote]:
    """Return the downloads of a benchmark: its files, or the archive that holds them."""
    remote = benchmark.remote
    if remote is None:
        return []
    wanted = _needed(benchmark, root)
    if remote.archive is not None:
        location = f"{benchmark.folder}/{remote.archive}"
        inside = tuple(os.path.relpath(path, root / benchmark.folder) for path in wanted)
        url = address(remote.base, remote.archive)
        return [Archive(location, url, md5=remote.md5, wanted=inside, strip=1)]
    names = [os.path.relpath(path, root) for path in wanted]
    return [
        Remote(name, address(remote.base, remote.names.get(name, name)), remote.sha256.get(name))
        for name in names
    ]


def _check_counts(dataset: TaskData, benchmark: Benchmark) -> None:
    counts = benchmark.expected
    expected: dict[str, int] = counts.model_dump(exclude_none=True) if counts else {}
    if any(dataset.counts.get(kind) != count for kind, count in expected.items()):
        raise DataError(
            f"{dataset.name} is from another edition of the data: expected {expected}",
            path=dataset.files[0].parent,
            value=dataset.counts,
            fix=f"download the data again, or pass benchmarks.{dataset.name}.expected=null",
        )


def download_from_hub(
    benchmarks: Mapping[str, Benchmark], root: Path, on_file: Callable[[Path], None]
) -> list[Path]:
    """Write the missing files that the hub can provide; return their paths.

    Raises
    ------
    DataError
        If a source cannot be read; files already written stay.
    """
    written: list[Path] = []
    for benchmark in benchmarks.values():
        for name, source in benchmark.hub.items():
            path = (root / benchmark.folder / name).resolve()
            if packed_or_plain(path).exists():
                continue
            on_file(path)
            write_hub_file(path, source)
            written.append(path)
    return written


def write_hub_file(path: Path, source: HubFile) -> None:
    """Write one split as JSON lines, or as a table if ``path`` ends in ``.tsv`` or ``.csv``."""
    import datasets

    try:
        with offline_if_cut_off(source.repo, "dataset"):
            rows = datasets.load_dataset(source.repo, source.config, split=source.split)
    except Exception as error:  # the hub's client and its libraries raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot read {source.repo} ({source.config}, {source.split}): {reason}",
            path=path,
            fix="check the connection, or write the file yourself (docs/suites.md)",
        ) from error
    separator = {".tsv": "\t", ".csv": ","}.get(path.suffix)
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        if separator:
            file.write(separator.join(rows.column_names) + "\n")
        for row in rows:
            file.write(_line(row, separator))


def _line(row: Mapping[str, Any], separator: str | None) -> str:
    if separator is None:
        return json.dumps(row, ensure_ascii=False, default=str) + "\n"
    return separator.join(str(value) for value in row.values()) + "\n"
