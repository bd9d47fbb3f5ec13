"""Where rows of public data come from besides one file: the hub, and folders like it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scimult.data.lines import Record
from scimult.data.rows import KINDS
from scimult.errors import DataError


def read_hub(repository: str, config: str, split: str) -> Iterator[Record]:
    """Yield the rows of a data set on the Hugging Face hub, streamed: nothing is kept on disk.

    Parameters
    ----------
    repository : str
        Such as ``allenai/scirepeval``, or a folder in the hub's layout.
    config, split : str
        Which part of it.

    Raises
    ------
    DataError
        If it cannot be opened, or the connection fails while it is read.
    """
    from datasets import load_dataset  # takes seconds to import

    path = Path(repository) / config / split
    try:
        rows = load_dataset(repository, config, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(path, number, row)
    except (OSError, ValueError) as error:
        fix = "check the name and the connection, or download the files and name their folder"
        problem = "data set of the hub cannot be read"
        raise DataError(problem, path=path, value=str(error), fix=fix) from error


def named_files(folder: Path, stem: str) -> list[Path]:
    """Return the files of a hub-like folder that hold ``stem``, of any kind, in order.

    For ``train``: ``train.jsonl``, ``train.json.gz``, ``train-00000-of-00006.parquet``, or the
    files of a sub-folder ``train/``.
    """
    inner = folder / stem
    paths = inner.iterdir() if inner.is_dir() else folder.glob(f"{stem}[-.]*")
    return sorted(
        path
        for path in paths
        if path.is_file() and Path(path.name.removesuffix(".gz")).suffix in KINDS
    )
