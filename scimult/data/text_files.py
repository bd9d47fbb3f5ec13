"""Locate a user's papers, labels and queries: a file, or a folder that holds it."""

from __future__ import annotations

from pathlib import Path

from scimult.data.lines import find_objects
from scimult.data.packed import unpacked_name, variants
from scimult.errors import DataError
from scimult.types import Kind

FILE_NAMES: dict[Kind, tuple[str, ...]] = {
    "paper": ("papers.jsonl", "corpus.jsonl", "papers.parquet"),
    "label": ("labels.jsonl", "labels.parquet"),
    "query": ("queries.jsonl", "queries.parquet"),
}

RAW_FORMAT = "scimult.raw"
"""Metadata key of a Parquet file that a conversion wrote, with checked rows."""


def find_file(path: Path | str, kind: Kind) -> Path:
    """Return ``path`` itself if it is a file, else the file of ``kind`` in the folder.

    Raises
    ------
    DataError
        If the folder holds none or several.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    names = FILE_NAMES[kind]
    files = [file for name in names for file in variants(path / name) if file.is_file()]
    if len(files) == 1:
        return files[0]
    problem = f"folder holds {len(files) or 'none'} of {', '.join(names)}, compressed or not"
    fix = "name the file itself"
    if kind == "paper":
        fix += f", or several by a pattern such as '{path}/*.bib'"
    raise DataError(problem, path=path, fix=fix)


def is_table(path: Path) -> bool:
    """Return whether a file name is that of a CSV or TSV file."""
    return Path(unpacked_name(path)).suffix.lower() in (".csv", ".tsv")


def check_labels(path: Path) -> Path:
    """Check cheaply that a file, or one of a folder, can hold labels; return it.

    Raises
    ------
    DataError
        If there is none, or it is BibTeX or the like.
    """
    file = find_file(path, "label")
    if raw_columns(file) is None and not (is_table(file) and file.exists()):
        find_objects(file)
    return file


def raw_columns(path: Path) -> list[str] | None:
    """Return the columns of a Parquet file that a conversion wrote; ``None`` for other files.

    Raises
    ------
    DataError
        If the Parquet file is damaged.
    """
    if path.suffix != ".parquet" or not path.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        problem, fix = "Parquet file is cut off or damaged", "convert its source again"
        raise DataError(problem, path=path, value=str(error), fix=fix) from error
    return list(schema.names) if RAW_FORMAT.encode() in (schema.metadata or {}) else None
