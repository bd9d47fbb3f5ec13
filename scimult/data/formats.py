"""Tells what a file is that stands where JSON lines are meant, and which command reads it.

One place for everything that reads JSON lines: search, tag, encode, prepare, evaluate.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from scimult.errors import DataError

HEAD_BYTES = 1 << 16
_BLOCK = 1 << 16
_SPACE = re.compile(r"\s*")
# After an element: a comma and what follows, or the bracket that closes the array.
_AFTER = re.compile(r"\s*(?:,\s*(?=\S)|(?=\]))")
# What stands before the objects of a JSON file that is no JSON lines.
ARRAY = re.compile(r"\s*\[(?=\s*(?:\{|\]|\Z))")
OPENALEX_PAGE = re.compile(r'\s*\{\s*"meta"\s*:\s*\{.*?"results"\s*:\s*\[', re.DOTALL)
# Crossref: an answer to a query, or a file of its yearly dump.
CROSSREF_PAGE = re.compile(
    r'\s*\{\s*(?:"status"\s*:.*?"message"\s*:\s*\{.*?)?"items"\s*:\s*\[', re.DOTALL
)
# How files that are not text start, what they are, and what to do with them.
_BINARY = {
    b"\x1f\x8b": ("gzip", "end its name in .gz"),
    b"PAR1": ("Parquet", "convert it with scimult prepare table"),
    b"PK\x03\x04": ("ZIP, as spreadsheets are", "unpack it, or save it as text"),
    b"\xff\xfe": ("UTF-16", "save the file as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    b"\xfe\xff": ("UTF-16", "save the file as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
}
# What ``scimult prepare table`` makes papers of (``importers``), and how its names end.
_IMPORTED = {
    "BibTeX": (re.compile(r"\A(?:\s*%[^\n]*\n)*\s*@\w+\s*[{(]"), ".bib"),
    "RIS": (re.compile(r"\A\s*TY  - "), ".ris"),
    "PubMed's XML": (re.compile(r"\A\s*(?:<[?!][^>]*>\s*)*<PubmedArticle"), ".xml"),
}
_OTHER = {
    "a MEDLINE export": (
        re.compile(r"\A\s*PMID- "),
        "import it into a reference manager and export CSL JSON, which is read as it is",
    ),
    "a web page": (
        re.compile(r"\A\s*<(?:!doctype html|html)", re.I),
        "download the file itself, not the page that shows it",
    ),
    "XML": (
        re.compile(r"\A\s*<[?!\w]"),
        'write {"id": "1", "title": "...", "abstract": "..."} on a line for every paper',
    ),
}
_SEPARATORS = {",": (".csv", "CSV"), "\t": (".tsv", "a table (TSV)"), ";": (".csv", "CSV")}
_COLUMN = re.compile(r"[\w .:/()#-]{1,60}")
# Words that name our columns in other people's tables; the first column with one is meant.
_COLUMN_WORDS = {
    "id": {"id", "key", "doi", "pmid", "eid"},
    "title": {"title"},
    "abstract": {"abstract", "summary"},
}
_NUMBER_CALL = re.compile(r"Number(?:Int|Long)\((-?\d+)\)")
_INDEX = "abstract_inverted_index"


def refuse_binary(path: Path, start: bytes) -> None:
    """Refuse a file of another format as a whole: its lines would be nonsense one by one."""
    for mark, (what, fix) in _BINARY.items():
        if start.startswith(mark):
            problem = f"file is not text but {what}"
            raise DataError(problem, path=path, value=start[:8], fix=fix)


def json_form(path: Path, start: bytes) -> re.Pattern[str] | None:
    """Return what stands before the objects of a JSON array; ``None`` for JSON lines.

    A start that is of no known format counts as JSON lines: what is wrong with a line is said
    when it is read.

    Parameters
    ----------
    path : Path
        The file, for messages.
    start : bytes
        Its first ``HEAD_BYTES``.

    Returns
    -------
    pattern or None
        ``ARRAY``, ``OPENALEX_PAGE``, ``CROSSREF_PAGE`` or ``None``.

    Raises
    ------
    DataError
        If the file is CSV, BibTeX, RIS or the like; the message has the command that reads it.
    """
    refuse_binary(path, start)
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if text.startswith("["):
        return ARRAY if ARRAY.match(text) else None
    if text.startswith("{"):
        for page in (OPENALEX_PAGE, CROSSREF_PAGE):
            if page.match(text):
                return page
        if re.match(r'\{[ \t]*\r?\n\s*"', text):
            fix = f"jq -c . {_quoted(path)} > {_quoted(path.with_suffix('.jsonl'))}"
            raise _foreign(path, "JSON objects over several lines each", text, fix)
        return None
    for what, (pattern, suffix) in _IMPORTED.items():
        if pattern.match(text):
            named, first = _named(path, suffix)
            fix = first + _prepare_command(named, f"papers.file={_quoted(named.name)}")
            raise _foreign(path, what, text, fix)
    for what, (pattern, fix) in _OTHER.items():
        if pattern.match(text):
            raise _foreign(path, what, text, fix)
    _refuse_table(path, text)
    return None


def read_elements(text: TextIO | PlainNumbers, opening: re.Pattern[str]) -> Iterator[Any]:
    """Yield the elements of the array that starts after ``opening``, one at a time.

    Only the element that is read is held in memory, with a block of the text after it.

    Raises
    ------
    ValueError, RecursionError
        If the array is cut off or holds what is no JSON, or is nested too deeply.
    """
    decode = json.JSONDecoder().raw_decode
    buffer = text.read(_BLOCK)
    match = opening.match(buffer)
    assert match is not None
    at = _SPACE.match(buffer, match.end()).end()  # type: ignore[union-attr]
    while buffer[at : at + 1] != "]":
        try:
            value, end = decode(buffer, at)
            after = _AFTER.match(buffer, end)
            if after is None:
                raise json.JSONDecodeError("comma or bracket expected", buffer, end)
        except json.JSONDecodeError as error:
            more = text.read(max(_BLOCK, len(buffer)))
            if not more:
                raise ValueError(error.msg) from None
            buffer, at = buffer[at:] + more, 0
            continue
        yield value
        at = after.end()
    if opening is ARRAY and (buffer[at + 1 :].strip() or text.read(_BLOCK).strip()):
        raise ValueError("more after the end of the array")


class PlainNumbers:
    """Text of a JSON file that a database wrote, ``NumberInt(2000)`` being 2000.

    AMiner's DBLP network v13 is such a file. Its numbers stand on lines of their own.
    """

    MARK = b"NumberInt("

    def __init__(self, text: TextIO) -> None:
        self._text = text

    def read(self, size: int) -> str:
        """Return about ``size`` characters, up to the end of a line."""
        block = self._text.read(size) + self._text.readline()
        return _NUMBER_CALL.sub(r"\1", block)


def restore_abstract(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a work of OpenAlex with its abstract in words; any other record as it is.

    OpenAlex gives the places of every word: ``{"of": [1, 5], ...}``.
    """
    index = fields.get(_INDEX)
    if not isinstance(index, dict) or fields.get("abstract") is not None:
        return fields
    try:
        abstract = words_in_place(index)
    except TypeError:
        return fields
    rest = {name: value for name, value in fields.items() if name != _INDEX}
    return {**rest, "abstract": abstract}


def words_in_place(index: dict[str, list[int]]) -> str:
    """Return the text of an inverted index: each word with its places."""
    places = sorted((place, word) for word, positions in index.items() for place in positions)
    return " ".join(word for _, word in places)


def _refuse_table(path: Path, text: str) -> None:
    """Refuse a table: its first line is names of columns, and the next has as many values."""
    lines = [line for line in text.splitlines()[:2] if line.strip()]
    for separator, (suffix, what) in _SEPARATORS.items():
        try:
            rows = [next(csv.reader([line], delimiter=separator)) for line in lines]
        except csv.Error:
            continue
        if len(rows[0] if rows else ()) < 2:
            continue
        names = [name.strip() for name in rows[0]]
        if not all(_COLUMN.fullmatch(name) for name in names) or len(rows[-1]) > len(names):
            continue
        raise DataError(
            f"expected JSON lines, this is {what}",
            path=path,
            value=names,
            fix=_table_command(path, suffix, names),
        )


def _table_command(path: Path, suffix: str, names: Sequence[str]) -> str:
    named, first = _named(path, suffix)
    if "title" not in names and "name" in names:
        files = f"papers.file=PAPERS labels.file={_quoted(named.name)}"
    else:
        files = f"papers.file={_quoted(named.name)}{_columns(names)}"
    return first + _prepare_command(named, files)


def _named(path: Path, suffix: str) -> tuple[Path, str]:
    """Return a path with the name that its format should have, and what says to rename it."""
    plain = path.with_name(path.name.removesuffix(".gz"))
    named = path if plain.suffix == suffix else path.with_suffix(suffix)
    return named, "" if named == path else f"call it {named.name}; "


def _prepare_command(path: Path, files: str) -> str:
    """Return the command that makes papers of a file, and what to name after it."""
    raw = path.with_name(f"{path.name.partition('.')[0]}.raw")
    folder, out, made = _quoted(path.parent), _quoted(raw), _quoted(raw / "table")
    return f"scimult prepare table --input {folder} --raw {out} {files}, then name {made}"


def _columns(names: Sequence[str]) -> str:
    """Return the options that say what our columns are called in this table."""
    options = []
    for ours, others in _COLUMN_WORDS.items():
        alike = [name for name in names if others & set(name.casefold().split())]
        if ours not in names and (alike or ours != "abstract"):
            option = f"papers.columns.{ours}={alike[0] if alike else 'COLUMN'}"
            options.append(f" {_quoted(option)}")
    return "".join(options)


def _foreign(path: Path, what: str, text: str, fix: str) -> DataError:
    problem = f"expected JSON lines, this is {what}"
    return DataError(problem, path=path, value=text.splitlines()[0][:60], fix=fix)


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))
