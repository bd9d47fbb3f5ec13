"""Synthetic downloads of public data sets, and their conversion."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.files import read_json
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.sources import SOURCES, Conversion, convert

Content = str | bytes | Sequence[Any] | Mapping[str, Any]


@dataclass
class Converted:
    """A converted raw folder."""

    folder: Path
    conversion: Conversion
    notes: list[str]

    def rows(self, source: str, kind: str) -> list[dict[str, Any]]:
        """Return papers, labels or queries of a source, without empty fields."""
        absent: tuple[Any, ...] = (None, [])
        return [
            {name: value for name, value in row.items() if value not in absent}
            for row in pq.read_table(self.folder / source / f"{kind}.parquet").to_pylist()
        ]

    def pairs(self, source: str, kind: str) -> list[tuple[str, ...]]:
        """Return citations, references, links or judgments of a source, sorted."""
        rows = pq.read_table(self.folder / source / f"{kind}.parquet").to_pylist()
        return sorted(
            tuple(f"{value:g}" if isinstance(value, float) else value for value in row.values())
            for row in rows
        )

    def counts(self, source: str) -> dict[str, int]:
        """Return the non-zero counts of a source."""
        return {what: count for what, count in self.conversion.counts[source].items() if count}

    def prepare(self, folder: Path, **choices: Any) -> PreparedData:
        """Prepare the converted data, all in the train split."""
        tree = {
            "root": str(self.folder),
            "sources": [
                config.model_dump(exclude_unset=True) for config in self.conversion.configs
            ],
            "dev_fraction": 0,
            **choices,
        }
        return build_dataset(validate(DatasetConfig, tree), folder)[0]


def write_files(folder: Path, files: Mapping[str, Content]) -> Path:
    """Write files by name: ``.parquet``, ``.jsonl`` or ``.json`` from objects, others as text."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
            continue
        if name.endswith(".parquet"):
            assert not isinstance(content, (str, Mapping))
            pq.write_table(pa.Table.from_pylist(list(content)), path)
            continue
        if not isinstance(content, str):
            whole = ".jsonl" not in name
            content = json.dumps(content) if whole else "\n".join(map(json.dumps, content)) + "\n"
        data = content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def run(
    folder: Path,
    source: str,
    contents: Mapping[str, Content],
    /,
    *,
    skip_bad: bool = False,
    **options: Any,
) -> Converted:
    """Write a synthetic download below ``folder`` and convert it."""
    public = SOURCES[source]
    download = write_files(folder / "download", contents)
    raw = folder / "raw"
    chosen = validate(public.options, options)
    conversion, notes = convert(public, chosen, download, raw, skip_bad=skip_bad)
    assert read_json(raw / "conversion.json")["counts"] == conversion.counts
    return Converted(raw, conversion, notes)


def table(*rows: Sequence[Any], separator: str = "\t") -> str:
    """Return rows as the lines of a table."""
    return "".join(separator.join(str(value) for value in row) + "\n" for row in rows)
