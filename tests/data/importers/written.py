"""Write and read paper files in tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scimult.data.importers import ImportedPaper, read_papers
from scimult.data.records import Rejects


def lines(*records: Mapping[str, Any]) -> str:
    """Return records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def written(folder: Path, name: str, text: str) -> Path:
    """Write a file, compressed if its name ends in .gz, and return its path."""
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path | str, **choices: Any) -> list[ImportedPaper]:
    """Return the papers of a file; the first bad record raises."""
    return list(read_papers([path], rejects=Rejects(), **choices))
