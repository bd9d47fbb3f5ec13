"""Files of benchmarks from data sets of the Hugging Face hub, written in the local layout.

Everything is then read, checked and hashed as local files are. A repository may also be a folder
on disk with the same layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark, HubFile
from scimult.files import atomic_file


def download(
    benchmarks: Mapping[str, Benchmark], root: Path, on_file: Callable[[Path], None]
) -> list[Path]:
    """Write the files that have a source on the hub and are not there yet; return their paths.

    Raises
    ------
    DataError
        If a source cannot be read; files written before stay.
    """
    written: list[Path] = []
    for benchmark in benchmarks.values():
        for name, source in benchmark.hub.items():
            path = (root / benchmark.folder / name).resolve()
            if path.exists():
                continue
            on_file(path)
            write_hub_file(path, source)
            written.append(path)
    return written


def write_hub_file(path: Path, source: HubFile) -> None:
    """Write one split as JSON lines, or as a table if ``path`` ends in ``.tsv`` or ``.csv``."""
    import datasets

    try:
        rows = datasets.load_dataset(source.repo, source.config, split=source.split)
    except Exception as error:  # the hub's client and its libraries raise what they like
        raise DataError(
            f"cannot read {source.repo} ({source.config}, {source.split}): "
            f"{str(error).splitlines()[0]}",
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
