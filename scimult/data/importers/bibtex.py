"""Read BibTeX and BibLaTeX files (bibtexparser): joined values, parents, names."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scimult.data.importers.doi import linked_doi
from scimult.data.importers.latex import BRACES, latex_decoder
from scimult.data.importers.values import first, keywords_in, year_in
from scimult.data.lines import empty_file, read_lines
from scimult.data.records import Record, Rejects
from scimult.errors import DataError
from scimult.progress import warn
from scimult.terminal import counted, listed

if TYPE_CHECKING:
    from bibtexparser.model import Block, Entry, Field

_VENUES = ("journal", "journaltitle", "booktitle", "school", "institution")
_DATES = ("year", "date")
# Scopus's first, and Web of Science's last if there are no others, as in their other exports.
_KEYWORDS = ("author_keywords", "keywords", "keyword", "mendeley-tags", "keywords-plus")
# What encloses or joins the pieces of a value; bibtexparser also lets a backslash escape.
_VALUE_MARK = re.compile(r"(?<!\\)[{}\"#]")
# A piece without them: a number, or the name of a string.
_BARE = re.compile(r"[^{}\"=]*")
# What should be an entry, and is a comment for bibtexparser: "@ article{", "@online-resource{".
_ODD_ENTRY = re.compile(r"^[ \t]*@(?!\s*comment\b).*", re.MULTILINE | re.IGNORECASE)
# EndNote leaves out a key that it does not have, with its comma: "@article{ author = {A}}".
_NO_KEY = re.compile(
    r"^([ \t]*@(?!(?:string|preamble|comment)\b)\w+\s*[{(])(?=\s*[\w-]+\s*=)",
    re.MULTILINE | re.IGNORECASE,
)
# What holds fields of others, names a set of others, or sets options of a style (IEEEtran, REVTeX).
_NO_PAPERS = {"xdata", "set", "ieeetranbstctl", "control"}
# A value from an xdata entry, "xdata=KEY-title", or one of its names, "xdata=KEY-author-2".
_FROM_DATA = re.compile(r"(?<!\S)xdata=(\S+)-([a-z]+)(?:-([1-9]\d*))?(?!\S)", re.I)
_INVALID = "entry is not valid BibTeX", "check its type, braces and commas"
# More than strings or xdata add to a value: some that repeat others add gigabytes.
_MOST_ADDED = 10_000
# Entries that all name each other have more circles than can be followed.
_MOST_CIRCLES = 100
# BibLaTeX also writes a name as "family=Doe, given=John, prefix=von".
_NAME_PART = re.compile(
    r"\b(family|given|prefix|suffix)\s*=\s*((?:\{(?:[^{}]|\{[^{}]*\})*\}|[^,{}\"])*)", re.I
)
_NAMED_PARTS = re.compile(r"[\s\"]*(?:family|given|prefix|suffix)(?:-i)?\s*=", re.I)
_TILDE = "\ue000"  # for private use: in no name


def read_bibtex(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the entries of a BibTeX or BibLaTeX file, with accents and commands decoded.

    Raises
    ------
    DataError
        Through ``rejects``: an entry that cannot be parsed, or a repeated key.
    """
    from bibtexparser.entrypoint import parse_string
    from bibtexparser.model import Entry

    logging.getLogger("bibtexparser").setLevel(logging.CRITICAL)  # our rejects name the line
    lines = dict(read_lines(path, rejects, keep_blank=True))
    numbers = range(1, max(lines, default=0) + 1)
    text = "\n".join(lines.get(number, "") for number in numbers)
    unread = [number for number in numbers if number not in lines]
    # Its middleware for strings knows no "#": values are resolved here.
    library = parse_string(_NO_KEY.sub(r"\1,", text), parse_stack=[])
    # Properties of ``library`` search all blocks at every use.
    blocks = _known_keys(library.blocks)
    _refuse_failed(blocks, path, rejects)
    strings = _strings(blocks)
    entries = [block for block in blocks if isinstance(block, Entry)]
    _warn_of_extra_fields(entries, path)
    data = _Data({entry.key.lower(): entry for entry in entries if entry.key}, strings)
    decode = latex_decoder()
    for entry in entries:
        if entry.entry_type.lower() in _NO_PAPERS:
            continue
        start = (entry.start_line or 0) + 1
        if any(start <= number <= start + (entry.raw or "").count("\n") for number in unread):
            continue  # one of its lines is no UTF-8, and was rejected
        problem, fix = _INVALID
        try:
            fields = data.with_parents(entry)
            problem, fix = "entry cannot be decoded", "replace its LaTeX by plain letters"
            paper = _bibtex_paper(fields, decode)
        except (ValueError, RecursionError) as error:
            value = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            bad = DataError(problem, path=path, line=start, value=value, fix=fix)
            rejects.reject(bad, entry.key or None)
        else:
            yield Record(path, start, {**fields, **paper})
    if not entries and not library.failed_blocks:
        rejects.reject(empty_file(path, "BibTeX entry"))


def _known_keys(blocks: Iterable[Block]) -> list[Block]:
    """Return blocks, with the entries in those that failed for a field twice, or for no key.

    A key that occurs twice stays an error, also of an entry that has a field twice.
    """
    from bibtexparser.library import Library
    from bibtexparser.model import DuplicateBlockKeyBlock, DuplicateFieldKeyBlock

    library = Library()
    for block in blocks:
        if isinstance(block, DuplicateFieldKeyBlock):
            block = block.ignore_error_block or block
        library.add(block, fail_on_duplicate_key=False)
    known = []
    for block in library.blocks:
        if isinstance(block, DuplicateBlockKeyBlock) and not block.key:
            block = block.ignore_error_block or block
        known.append(block)
    return known


def _warn_of_extra_fields(entries: Iterable[Entry], path: Path) -> None:
    """Warn of the first entry that has a field twice; as in BibTeX, the first one counts."""
    repeats = []
    for entry in entries:
        counts = Counter(map(_name, entry.fields))
        if extra := [name for name, count in counts.items() if count > 1]:
            repeats.append(((entry.start_line or 0) + 1, extra))
    if repeats:
        line, names = repeats[0]
        more = f"; so it is in {counted(len(repeats) - 1, 'more entry')}" if repeats[1:] else ""
        rule = "the first value counts, as in BibTeX"
        warn(f"{path}:{line}: entry has {listed(names)} twice; {rule}{more}")


def _refuse_failed(blocks: Sequence[Block], path: Path, rejects: Rejects) -> None:
    from bibtexparser.model import (
        DuplicateBlockKeyBlock,
        ImplicitComment,
        ParsingFailedBlock,
    )

    for block in blocks:
        number = (block.start_line or 0) + 1
        if isinstance(block, ImplicitComment) and (start := _ODD_ENTRY.search(block.comment)):
            problem, fix = _INVALID
            number += block.comment[: start.start()].count("\n")
            rejects.refuse(problem, path, number, value=start[0].strip(), fix=fix)
        elif isinstance(block, ParsingFailedBlock):
            key = getattr(block.ignore_error_block, "key", None)
            if isinstance(block, DuplicateBlockKeyBlock):
                problem = "key occurs twice in one file"
                fix = "give one of them another key, or leave it out with --skip-bad"
                value: Any = block.key
            else:
                problem, fix = _INVALID
                error = getattr(block, "error", None)
                value = getattr(error, "abort_reason", str(error))
            rejects.reject(DataError(problem, path=path, line=number, value=value, fix=fix), key)


def _strings(blocks: Sequence[Block]) -> dict[str, str]:
    """Return the strings that a file defines.

    Unlike BibTeX, which reads once, fields may use strings that are defined after them.
    """
    from bibtexparser.model import String

    strings: dict[str, str] = {}
    for block in blocks:
        if isinstance(block, String):
            with suppress(ValueError):
                strings[block.key.lower()] = _joined(block.value, strings)
    return strings


def _joined(value: str, strings: Mapping[str, str]) -> str:
    """Return the text of a value: its pieces between ``#``, of which bare ones name strings.

    A name that the file does not define, such as a style's journal, stands for itself. Anything
    between two pieces but ``#``, as where a comma is missing, is a ValueError.

    >>> _joined('nips # { 12} # ": C{#}"', {"nips": "Advances"})
    'Advances 12: C{#}'
    """
    pieces = []
    start, depth, quoted = 0, 0, False
    for mark in _VALUE_MARK.finditer(value):
        if mark[0] in "{}":
            depth += 1 if mark[0] == "{" else -1
        elif depth == 0 and mark[0] == '"':
            quoted = not quoted
        elif depth == 0 and not quoted:
            pieces.append(value[start : mark.start()])
            start = mark.end()
    pieces.append(value[start:])
    return _grown(value, "".join(_piece(piece.strip(), strings) for piece in pieces))


def _grown(value: str, text: str) -> str:
    """Return the text of a value, or raise a ValueError if it is much longer."""
    if len(text) > len(value) + _MOST_ADDED:
        raise ValueError(f"{value[:60]} stands for {len(text):,} characters")
    return text


def _piece(piece: str, strings: Mapping[str, str]) -> str:
    """Return a piece of a value without what encloses it, or the string that it names."""
    if _BARE.fullmatch(piece):
        return strings.get(piece.lower(), piece)
    depth = 0
    for mark in _VALUE_MARK.finditer(piece, 1):
        if depth == 0 and mark[0] == ("}" if piece[0] == "{" else piece[0]):
            if mark.end() < len(piece):
                break
            return piece[1:-1]
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
    raise ValueError(piece)


class _Data:
    """The entries of a file by key, and what they take from each other."""

    def __init__(self, by_key: Mapping[str, Entry], strings: Mapping[str, str]) -> None:
        self._by_key, self._strings = by_key, strings
        self._known: dict[str, dict[str, str]] = {}
        # The entries at which a circle ended while the current paper was read.
        self._ends: list[str] = []

    def with_parents(self, entry: Entry) -> dict[str, str]:
        """Return an entry's fields, with the venue and year of its ``crossref`` if it has none.

        As in BibLaTeX, a parent without ``booktitle`` gives its ``title``; none gives its DOI.
        """
        self._ends.clear()
        fields, by_key = self._with_data(entry), self._by_key
        above, seen = fields, {fields["key"].lower()}
        # Proceedings may have a parent too, such as a series; a circle ends where it began.
        while (key := above.get("crossref", "").strip().lower()) in by_key and key not in seen:
            seen.add(key)
            above = self._with_data(by_key[key])
            if first(fields, *_VENUES) is None:
                fields["booktitle"] = first(above, "booktitle", *_VENUES, "title") or ""
            if first(fields, *_DATES) is None:
                fields["year"] = first(above, *_DATES) or ""
        return fields

    def _with_data(self, entry: Entry, below: Sequence[str] = ()) -> dict[str, str]:
        """Return an entry's fields with those of the entries in its ``xdata``.

        These replace its own, and later ones earlier ones, as in Biber; so do single values and
        names. ``below`` are the entries that ask for this one's: a circle ends where it began.
        """
        fields = self._fields(entry)
        below = (*below, fields["key"].lower())

        def data(key: str) -> dict[str, str]:
            other, before = self._by_key.get(key), len(self._ends)
            if other is None or other.entry_type.lower() != "xdata" or key == below[-1]:
                return {}
            if key in below:
                self._ends.append(key)
                if len(self._ends) > _MOST_CIRCLES:
                    raise ValueError(f"xdata entries name each other, such as {other.key}")
                return {}
            # Once: of forty that name the next one twice, the last is named a trillion times.
            if key in self._known:
                return self._known[key]
            inherited = self._with_data(other, below)
            # What an entry of a circle has depends on where that began.
            if {key, *below}.isdisjoint(self._ends[before:]):
                self._known[key] = inherited
            return inherited

        def named(reference: re.Match[str]) -> str:
            text = data(reference[1].lower()).get(reference[2].lower(), "")
            texts = [text] if reference[3] is None else _persons(text)[int(reference[3]) - 1 :]
            return texts[0] if any(texts[:1]) else reference[0]

        fields = {name: _grown(v, _FROM_DATA.sub(named, v)) for name, v in fields.items()}
        for key in re.split(r"\s*,\s*", fields.get("xdata", "").strip().lower()):
            fields |= {**data(key), "key": fields["key"]}
        return fields

    def _fields(self, entry: Entry) -> dict[str, str]:
        fields: dict[str, str] = {}
        for field in entry.fields:
            fields.setdefault(_name(field), _joined(str(field.value), self._strings))
        return {**fields, "key": entry.key}  # which may also be a field to sort by


def _name(field: Field) -> str:
    """Return a field's name; a comment may stand above it."""
    return field.key.rpartition("\n")[2].strip().lower()


def _bibtex_paper(fields: Mapping[str, str], decode: Callable[[str], str]) -> dict[str, Any]:
    persons = map(_first_name_first, _persons(first(fields, "author", "editor") or ""))
    address = fields.get("url", "")
    doi = fields.get("doi") or (address if linked_doi(address) else "")
    return {
        "id": fields["key"],
        "title": decode(": ".join(filter(None, (fields.get("title"), fields.get("subtitle"))))),
        "abstract": decode(fields.get("abstract", "")),
        "authors": [name for name in map(decode, persons) if name != "others"],
        "venue": decode(first(fields, *_VENUES) or ""),
        "year": year_in(first(fields, *_DATES)),
        # Mendeley writes 10.1007/978{\_}28; of others LaTeX would change the dashes.
        "doi": decode(doi.replace(r"\url", "")) if "\\" in doi else doi.translate(BRACES),
        "labels": keywords_in(decode(first(fields, *_KEYWORDS) or "")),
    }


def _persons(names: str) -> list[str]:
    r"""Return the names between "and" outside braces; bibtexparser cuts a command off the second.

    >>> _persons(r"Ann Lee and \'Emile Zola and {Simon and Schuster}")
    ['Ann Lee', "\\'Emile Zola", '{Simon and Schuster}']
    """
    persons: list[list[str]] = [[]]
    depth = 0
    for word in names.split():
        if depth == 0 and word.lower() == "and":
            persons.append([])
            continue
        persons[-1].append(word)
        depth = max(depth + word.count("{") - word.count("}"), 0)
    return [" ".join(words) for words in persons if words]


def _first_name_first(person: str) -> str:
    """Return ``Given von Family Jr``, still in LaTeX."""
    from bibtexparser.middlewares.names import parse_single_name_into_parts

    if not _NAMED_PARTS.match(person):
        # It would take the accent for a tie, which separates words.
        person = person.replace(r"\~", _TILDE)
        name: str = parse_single_name_into_parts(person, strict=False).merge_first_name_first
        return name.replace(_TILDE, r"\~")
    parts = {part.lower(): text.strip() for part, text in _NAME_PART.findall(person)}
    ordered = (parts.get(part) for part in ("given", "prefix", "family", "suffix"))
    return " ".join(text for text in ordered if text)
