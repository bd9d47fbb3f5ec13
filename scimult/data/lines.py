"""Read input files line by line; errors name file, line, value and fix."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from scimult.data.formats import (
    HEAD_BYTES,
    LONGEST,
    json_form,
    read_elements,
    refuse_binary,
    restore_abstract,
)
from scimult.data.packed import open_binary
from scimult.data.records import Record, Rejects
from scimult.errors import DataError
from scimult.files import json_problem


def read_jsonl(path: Path | str, rejects: Rejects, *, arrays: bool = False) -> Iterator[Record]:
    """Yield the objects of a JSON lines file; ``.gz`` and the like are decompressed.

    Blank lines are skipped. Also reads a JSON array of objects, or a page of OpenAlex, Crossref or
    Semantic Scholar; ``Record.line`` is then the element's number. With ``arrays`` a line may be an
    array, whose items become the fields ``"0"``, ``"1"``, ... For CSV, BibTeX and the like the
    error has the command that reads them.

    Raises
    ------
    DataError
        If the file does not exist, or is CSV, BibTeX or the like (the message has the command
        that reads it); and, through ``rejects``, if it is empty or cut off, or a line is not
        UTF-8, not JSON or not an object.
    """
    path = Path(path)
    opening = None if arrays else find_objects(path)
    if opening is not None:
        yield from _read_elements(path, opening, rejects)
        return
    has_lines = False
    for number, line in read_lines(path, rejects):
        has_lines = True
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            detail = json_problem(error)
            if isinstance(error, json.JSONDecodeError):
                detail = f"{error.msg}; the file may be cut off"
            fix = f"write one complete JSON object per line ({detail})"
            rejects.refuse("line is not valid JSON", path, number, value=line, fix=fix)
            continue
        if arrays and isinstance(fields, list):
            fields = {str(i): item for i, item in enumerate(fields)}
        if not isinstance(fields, dict):
            fix = 'write one object per line, such as {"id": "1", "title": "..."}'
            rejects.refuse("line is not an object", path, number, value=fields, fix=fix)
            continue
        yield Record(path, number, restore_abstract(fields))
    if not has_lines:
        rejects.reject(empty_file(path))


def find_objects(path: Path) -> re.Pattern[str] | None:
    """Return the pattern of a JSON file's text before its objects; see ``formats.json_form``."""
    try:
        with open_binary(path) as file:
            start = file.read(HEAD_BYTES)
    except (EOFError, OSError):
        return None  # reading it reports the problem
    return json_form(path, start)


def _read_elements(path: Path, opening: re.Pattern[str], rejects: Rejects) -> Iterator[Record]:
    number = 0
    try:
        with open_binary(path) as file:
            elements = read_elements(io.TextIOWrapper(file, encoding="utf-8-sig"), opening)
            for number, value in enumerate(elements, start=1):
                if isinstance(value, dict):
                    yield Record(path, number, restore_abstract(value))
                    continue
                fix = "write an array of objects"
                rejects.refuse("element is not an object", path, number, value=value, fix=fix)
    except DataError:
        raise
    except (ValueError, RecursionError, EOFError) as error:
        detail = json_problem(error) if isinstance(error, RecursionError) else str(error)
        problem, fix = "JSON file is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, number + 1, value=detail, fix=fix)
        return
    if not number:
        rejects.reject(empty_file(path))


def read_lines(
    path: Path, rejects: Rejects, *, keep_blank: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line, by default without blank ones.

    Raises
    ------
    DataError
        If the file does not exist, cannot be read, is of another format or has a line of more than
        ``LONGEST`` bytes; and, through ``rejects``, if a line is not UTF-8 or a compressed file is
        cut off.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, raw in enumerate(_split(file), start=1):
                if number == 1:
                    refuse_binary(path, raw)
                if len(raw) > LONGEST:
                    problem = f"line has more than {LONGEST:,} bytes"
                    fix = "write one record per line"
                    raise DataError(problem, path=path, line=number, value=raw[:60], fix=fix)
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    fix = f"save the file as UTF-8 ({error.reason} at byte {error.start}), as "
                    fix += "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW does for a Windows file"
                    rejects.refuse("line is not UTF-8", path, number, value=raw[:60], fix=fix)
                    continue
                line = line.rstrip("\r\n")
                if keep_blank or line.strip():
                    yield number, line
    except EOFError as error:
        problem, fix = "compressed file is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, number + 1, value=str(error), fix=fix)
    except OSError as error:
        problem = f"file cannot be read: {error.strerror}"
        raise DataError(problem, path=path, fix="check the disk and its permissions") from error


def _split(file: BinaryIO) -> Iterable[bytes]:
    """Return a file's lines; they also end in carriage returns if its first one does.

    Old programs for the Mac write them so, and line feeds within values.
    """
    lines = iter(partial(file.readline, LONGEST + 1), b"")
    first = next(lines, b"")
    lines = chain((first,) if first else (), lines)
    if len(first) <= LONGEST and b"\r" in first.rstrip(b"\r\n"):
        return chain.from_iterable(map(bytes.splitlines, lines))
    return lines


def empty_file(path: Path, missing: str = "") -> DataError:
    """Return the error for a file without records, which says what is missing if it has text."""
    if missing and path.stat().st_size:
        fix = "check that it is the right file, and its format"
        return DataError(f"file has no {missing}", path=path, fix=fix)
    return DataError("file is empty", path=path, fix="write the file again or leave it out")
