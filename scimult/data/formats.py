"""Recognise files given in place of JSON lines, and name the command that reads them.

Shared by everything that reads JSON lines: search, tag, encode, prepare, evaluate.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from scimult.data.packed import unpacked_name
from scimult.errors import DataError

HEAD_BYTES = 1 << 16
LONGEST = 1 << 26
"""Bytes of a line, or characters of an element: 2 MB of gzip may hold a line of 2 GB."""
_BLOCK = 1 << 16
# What is wrong this far before the end of a text is not cut: longer than NumberLong(123456789).
_LONGEST_CUT = 40
_DECODE = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"\s*")
# After an element: a comma before the next one, or the closing bracket.
_AFTER = re.compile(r"\s*(?:,\s*(?=\S)|(?=\]))")
# Text before the objects of JSON files other than JSON lines.
ARRAY = re.compile(r"\s*\[(?=\s*(?:\{|\]|\Z))")
OPENALEX_PAGE = re.compile(r'\s*\{\s*"meta"\s*:\s*\{.*?"results"\s*:\s*\[', re.DOTALL)
# Semantic Scholar's API: an answer of its search, or of the references of a paper.
S2AG_PAGE = re.compile(
    r'\s*\{(?:\s*"(?:total|offset|next|token)"\s*:\s*(?:\d+|null|"[^"]*")\s*,)+\s*"data"\s*:\s*\['
)
# Crossref: a query's response, or a file of the yearly dump.
CROSSREF_PAGE = re.compile(
    r'\s*\{\s*(?:"status"\s*:(?:(?!"message"\s*:).)*"message"\s*:\s*\{.*?)?'
    r'"items"\s*:\s*\[',
    re.DOTALL,
)
# An answer of Europe PMC's search, of DBLP's, and Better BibTeX's export of a Zotero library, whose
# collections list numbers of items.
EUROPE_PMC_PAGE = re.compile(r'\s*\{.*?"resultList"\s*:\s*\{\s*"result"\s*:\s*\[', re.DOTALL)
DBLP_PAGE = re.compile(r'\s*\{\s*"result"\s*:\s*\{.*?"hit"\s*:\s*\[', re.DOTALL)
ZOTERO_PAGE = re.compile(
    r'\s*\{\s*"(?:config|collections|version)"\s*:.*?"items"\s*:\s*\[(?=\s*\{)', re.DOTALL
)
_PAGES = (OPENALEX_PAGE, S2AG_PAGE, CROSSREF_PAGE, EUROPE_PMC_PAGE, DBLP_PAGE, ZOTERO_PAGE)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Binary files: first bytes, format, and fix.
_BINARY = {
    b"\x1f\x8b": ("gzip", "end its name in .gz"),
    b"BZh": ("bzip2", "end its name in .bz2"),
    b"\xfd7zXZ": ("xz", "end its name in .xz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "end its name in .zst"),
    b"PAR1": ("Parquet", "convert it with scimult prepare table"),
    b"PK\x03\x04": ("ZIP, as spreadsheets are", "unpack it, or save it as text"),
    b"\xff\xfe": ("UTF-16", "save the file as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    b"\xfe\xff": ("UTF-16", "save the file as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
}


class TextFormat(NamedTuple):
    """A format that ``importers`` read: its name, how a file starts, and how names end."""

    what: str
    start: re.Pattern[str]
    endings: tuple[str, ...]


IMPORTED: Mapping[str, TextFormat] = {
    "bibtex": TextFormat(
        "BibTeX", re.compile(r"(?:\s*%[^\n]*\n)*\s*@\w+\s*[{(]"), (".bib", ".bibtex")
    ),
    "ris": TextFormat("RIS", re.compile(r"\s*TY\s+-"), (".ris",)),
    "nbib": TextFormat("PubMed's .nbib", re.compile(r"\s*(?:PMID|OWN )- "), (".nbib",)),
    "enw": TextFormat("EndNote's .enw", re.compile(r"\s*%0 "), (".enw",)),
    "wos": TextFormat(
        "Web of Science's", re.compile(r"\s*(?:FN \S[^\n\r]*\s+VR |PT [A-Z]\s)"), (".ciw",)
    ),
    "pubmed": TextFormat(
        "PubMed's XML", re.compile(r"\s*(?:<[?!][^>]*>\s*)*<Pubmed\w*Article"), (".xml",)
    ),
    "atom": TextFormat(
        "an Atom feed, as of arXiv's API",
        re.compile(r"\s*(?:<[?!][^>]*>\s*)*<feed\b[^>]*\bxmlns=.http://www\.w3\.org/2005/Atom"),
        (".atom",),
    ),
}
"""Formats of text that ``scimult prepare table`` converts."""
WOS_COLUMNS = {"PT", "TI", "UT"}
"""Columns that tell Web of Science's tab-delimited export."""
_OTHER = {
    "a web page": (
        re.compile(r"\A\s*<(?:!doctype html|html)", re.I),
        "download the file itself, not the page that shows it",
    ),
    "XML": (
        re.compile(r"\A\s*<[?!\w]"),
        'write one line per paper: {"id": "1", "title": "...", "abstract": "..."}',
    ),
}
_SEPARATORS = {",": (".csv", "CSV"), "\t": (".tsv", "a table (TSV)"), ";": (".csv", "CSV")}
_COLUMN = re.compile(r"[\w .:/()#-]{1,60}")
_NUMBER_CALL = re.compile(r"Number(?:Int|Long)\((-?\d+)\)")
_INDEX = "abstract_inverted_index"


def refuse_binary(path: Path, start: bytes) -> None:
    """Raise if a file is binary: reporting its lines one by one would make no sense."""
    for mark, (what, fix) in _BINARY.items():
        if start.startswith(mark):
            raise DataError(f"file is not text but {what}", path=path, value=start[:8], fix=fix)


def json_form(path: Path, start: bytes) -> re.Pattern[str] | None:
    """Return the pattern of a JSON file's text before its objects; ``None`` for JSON lines.

    An unknown format counts as JSON lines: reading it reports what is wrong with each line. Raises,
    with the command that reads it, if ``start``, the first ``HEAD_BYTES``, is CSV, BibTeX, RIS or
    the like.
    """
    refuse_binary(path, start)
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if text.startswith("["):
        return ARRAY if ARRAY.match(text) else None
    if text.startswith("{"):
        for page in _PAGES:
            if page.match(text):
                return page
        if re.match(r'\{[ \t]*\r?\n\s*"', text):
            fix = f"jq -c . {_quoted(path)} > {_quoted(path.with_suffix('.jsonl'))}"
            raise _other_format(path, "JSON objects over several lines each", text, fix)
        return None
    for what, pattern, endings in IMPORTED.values():
        if pattern.match(text):
            renamed, rename = _with_suffix(path, endings[0])
            fix = rename + _prepare_command(renamed, f"papers.file={_quoted(renamed.name)}")
            raise _other_format(path, what, text, fix)
    for what, (pattern, fix) in _OTHER.items():
        if pattern.match(text):
            raise _other_format(path, what, text, fix)
    _refuse_table(path, text)
    return None


def read_elements(text: TextIO, opening: re.Pattern[str]) -> Iterator[Any]:
    """Yield the elements of the array that starts after ``opening``, one at a time.

    Holds one element and a block of the following text in memory. Several pages may follow one
    another, as when downloads are appended to one file. An array that is cut off, is not valid JSON
    or is nested too deeply is a ValueError or RecursionError.
    """
    buffer = text.read(_BLOCK)
    match = opening.match(buffer)
    assert match is not None
    while match is not None:
        # A page's array is within objects, which end after it.
        head = _STRING.sub("", match[0])
        depth = head.count("{") - head.count("}")
        buffer = buffer[match.end() :].lstrip()
        at = 0
        while buffer[at : at + 1] != "]":
            value, buffer, at = _decoded(text, buffer, at, _AFTER)
            yield value
        opened = '{"":' * depth + "[0"
        _, buffer, at = _decoded(text, opened + buffer[at:], 0, _SPACE)
        buffer = buffer[at:] + text.read(_BLOCK)
        match = None if opening is ARRAY else opening.match(buffer)
    if buffer.strip():
        raise ValueError("extra text after the end of the array")


def _decoded(
    text: TextIO, buffer: str, at: int, following: re.Pattern[str]
) -> tuple[Any, str, int]:
    """Decode the value at a position; return it, the buffer, and where what follows ends.

    A database's ``NumberInt(2000)``, as in AMiner's DBLP network v13, counts as 2000.
    """
    while True:
        try:
            value, end = _DECODE(buffer, at)
            after = following.match(buffer, end)
            if after is None:
                is_cut = not buffer[end:].strip(", \t\r\n")
                where = len(buffer) if is_cut else end
                raise json.JSONDecodeError("comma or bracket expected", buffer, where)
            return value, buffer, after.end()
        except json.JSONDecodeError as error:
            buffer, where = buffer[at:], error.pos - at
            at = 0
            if _NUMBER_CALL.match(buffer, where):
                buffer = _NUMBER_CALL.sub(r"\1", buffer)
                continue
            # More text can mend only what the end of the buffer may have cut.
            is_cut = error.msg.startswith("Unterminated") or where > len(buffer) - _LONGEST_CUT
            if len(buffer) > LONGEST:
                raise ValueError(f"an element has more than {LONGEST:,} characters") from None
            more = text.read(max(_BLOCK, len(buffer))) if is_cut else ""
            if not more:
                near = buffer[max(where - _LONGEST_CUT, 0) : where + _LONGEST_CUT]
                raise ValueError(f"{error.msg} near {near!r}") from None
            buffer = (buffer + more).lstrip()


def restore_abstract(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a record, with the abstract restored from OpenAlex's inverted index if it has one.

    The index lists the positions of every word: ``{"of": [1, 5], ...}``. In tables made of OpenAlex
    it is JSON in a string, or a map, which Arrow gives as pairs.
    """
    index, given = fields.get(_INDEX), fields.get("abstract")
    # Spaces alone are none, as in the SQL of ``preparation.source_texts``.
    is_given = given.strip() if isinstance(given, str) else given is not None
    if not index or is_given:
        return fields
    try:
        abstract = text_of_index(dict(json.loads(index) if isinstance(index, str) else index))
    except (TypeError, ValueError):
        return fields
    rest = {name: value for name, value in fields.items() if name != _INDEX}
    return {**rest, "abstract": abstract}


def text_of_index(index: dict[str, list[int]]) -> str:
    """Return the text of an inverted index, which lists the positions of each word."""
    words = sorted((at, word) for word, positions in index.items() for at in positions)
    return " ".join(word for _, word in words)


def _refuse_table(path: Path, text: str) -> None:
    """Raise if the first line has column names and the second no more values than that."""
    lines = [line for line in text.splitlines()[:2] if line.strip()]
    for separator, (suffix, what) in _SEPARATORS.items():
        try:
            rows = [next(csv.reader([line], delimiter=separator)) for line in lines]
        except csv.Error:
            continue
        if len(rows[0] if rows else ()) < 2:
            continue
        names = [name.strip() for name in rows[0]]
        most = len(names) + (rows[-1][-1] == "")  # rows may end with a separator
        if not all(_COLUMN.fullmatch(name) for name in names) or len(rows[-1]) > most:
            continue
        raise DataError(
            f"expected JSON lines, this is {what}",
            path=path,
            value=names,
            fix=_table_command(path, suffix, names),
        )


def _table_command(path: Path, suffix: str, names: Sequence[str]) -> str:
    renamed, rename = _with_suffix(path, suffix)
    files = f"papers.file={_quoted(renamed.name)}"
    if "title" not in names and "name" in names:
        files = f"papers.file=PAPERS labels.file={_quoted(renamed.name)}"
    elif not any(known <= set(names) for known in ({"id", "title"}, WOS_COLUMNS)):
        # It knows the names of columns in other programs' exports.
        files += f" papers.format={suffix[1:]}"
    return rename + _prepare_command(renamed, files)


def _with_suffix(path: Path, suffix: str) -> tuple[Path, str]:
    """Return a path with its format's suffix, and the instruction to rename it if needed."""
    plain = path.with_name(unpacked_name(path))
    renamed = path if plain.suffix == suffix else path.with_suffix(suffix)
    return renamed, "" if renamed == path else f"rename it to {renamed.name}; "


def _prepare_command(path: Path, files: str) -> str:
    """Return the command that converts a file to papers, and the folder to use after it."""
    raw = path.with_name(f"{path.name.partition('.')[0]}.raw")
    folder, out, result = _quoted(path.parent), _quoted(raw), _quoted(raw / "table")
    return f"scimult prepare table --input {folder} --raw {out} {files}, then use {result}"


def _other_format(path: Path, what: str, text: str, fix: str) -> DataError:
    problem = f"expected JSON lines, this is {what}"
    return DataError(problem, path=path, value=text.splitlines()[0][:60], fix=fix)


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))
