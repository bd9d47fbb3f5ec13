"""Find paper files and guess their formats."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from scimult.data.formats import HEAD_BYTES, IMPORTED, WOS_COLUMNS, refuse_binary
from scimult.data.importers.shapes import guess_shape
from scimult.data.importers.tagged import LAYOUTS
from scimult.data.lines import empty_file
from scimult.data.packed import no_file, open_binary, unpacked_name
from scimult.data.records import Rejects
from scimult.data.rows import KINDS, read_rows
from scimult.data.text_files import find_file
from scimult.errors import DataError, one_of


class Format(NamedTuple):
    """A file format: the container of its records, and the shape of a paper in a record."""

    container: str
    shape: str


# Format names for users. Without a container, the file decides, as between JSON and Parquet.
FORMATS: dict[str, Format] = {
    "jsonl": Format("json", "plain"),
    "csv": Format("csv", "plain"),
    "tsv": Format("tsv", "plain"),
    "parquet": Format("parquet", "plain"),
    "bibtex": Format("bibtex", ""),
    **{name: Format(name, name) for name in ("ris", "nbib", "enw")},
    "wos": Format("", "wos"),
    "zotero": Format("", ""),
    "openalex": Format("", "openalex"),
    "s2ag": Format("", "s2ag"),
    "crossref": Format("", "crossref"),
    "aminer": Format("", "aminer"),
    "arxiv": Format("", "arxiv"),
    "europepmc": Format("", "europepmc"),
    "dblp": Format("", "dblp"),
    "pubmed": Format("pubmed", ""),
    "prepared": Format("prepared", ""),
}
# Of .txt files the content tells.
_SUFFIXES = {suffix: kind for suffix, kind in KINDS.items() if suffix != ".txt"} | {
    ending: name for name, kind in IMPORTED.items() for ending in kind.endings
}
# Records among which one tells the shape.
_TELLING = 100
_TELLING_COLUMNS = {"wos": WOS_COLUMNS, "openalex": {"id", "authorships.author.display_name"}}
_JSON = re.compile(r"\s*[\[{]")


def find_files(files: Sequence[Path | str]) -> list[Path]:
    """Return the files, with globs expanded and folders replaced by their file of papers.

    Raises
    ------
    DataError
        If one does not exist, or a glob matches nothing.
    """
    if not files:
        raise DataError("no file of papers", fix="give at least one")
    return list(chain.from_iterable(_expand(Path(file)) for file in files))


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        is_prepared = all((path / name).is_file() for name in ("texts.arrow", "metadata.arrow"))
        return [path if is_prepared else find_file(path, "paper")]
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        files = [file for file in files if file.is_file()]
        if files:
            return files
        raise DataError("no file matches", path=path, fix="correct the pattern")
    raise no_file(path)


def guess_format(path: Path, named: str | None = None) -> Format:
    """Return the format of a file, from the user's name for it, the file name and its content.

    Raises
    ------
    DataError
        If the format is unknown.
    UnknownNameError
        If ``named`` is none of ``FORMATS``.
    """
    hint = Format("", "")
    if named is not None:
        hint = FORMATS[one_of("format of papers", named, FORMATS)]
    container = hint.container or _container(path)
    if container in IMPORTED or container == "prepared":
        return Format(container, container if container in LAYOUTS else "")
    if hint.shape:
        return Format(container, hint.shape)
    if container in ("json", "parquet"):
        return Format(container, _shape(path, container) or "plain")
    columns = {name.strip('" ') for name in re.split(r"[\t,;]", _header(read_start(path)))}
    shapes = (shape for shape, names in _TELLING_COLUMNS.items() if names <= columns)
    return Format(container, next(shapes, "plain"))


def _container(path: Path) -> str:
    if path.is_dir():
        return "prepared"
    by_name = _SUFFIXES.get(Path(unpacked_name(path)).suffix.lower())
    if by_name == "pubmed" and IMPORTED["atom"].start.match(_text(read_start(path))):
        return "atom"
    if by_name is not None:
        return by_name
    start = read_start(path)
    if not start:
        raise empty_file(path)
    if start.startswith(b"PAR1"):
        return "parquet"
    refuse_binary(path, start)
    text = _text(start)
    for container, kind in IMPORTED.items():
        if kind.start.match(text):
            return container
    if _JSON.match(text):
        return "json"
    header = _header(start)
    if "\t" in header or "," in header:
        return "tsv" if header.count("\t") >= header.count(",") else "csv"
    fix = f"end its name in {', '.join(_SUFFIXES)}, or give its format: {', '.join(FORMATS)}"
    raise DataError("unknown file format", path=path, value=header[:60], fix=fix)


def _shape(path: Path, container: str) -> str | None:
    """Return the shape of the first record that tells it: a reference without a date may not."""
    records = islice(read_rows(path, Rejects(skip_bad=True), container), _TELLING)
    return next(filter(None, (guess_shape(record.fields) for record in records)), None)


def _header(start: bytes) -> str:
    """Return the first line."""
    return re.split("[\r\n]", _text(start), maxsplit=1)[0]


def _text(start: bytes) -> str:
    return start.decode("utf-8-sig", errors="replace")


def read_start(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed."""
    try:
        with open_binary(path) as file:
            return file.read(HEAD_BYTES)
    except (EOFError, OSError) as error:
        problem = "compressed file is cut off or damaged"
        raise DataError(problem, path=path, value=str(error), fix="download it again") from error
