"""Build an imported paper from a record with our field names."""

from __future__ import annotations

import ast
import hashlib
import html
import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scimult.data.importers.doi import short_doi
from scimult.data.lines import Record
from scimult.errors import DataError
from scimult.terminal import is_blank
from scimult.types import Text

FIELDS = (
    "id",
    "title",
    "abstract",
    "authors",
    "venue",
    "year",
    "doi",
    "references",
    "labels",
)
NO_TEXT = "title and abstract are both empty"
_KEYWORD_END = re.compile("[;,]")
_YEAR = re.compile(r"(?<!\d)(1[4-9]\d\d|20\d\d)(?!\d)")
_NO_YEAR = re.compile(
    r"0?|n\.?\s?[ad]\.?|n/a|none|null|unknown|in press|forthcoming|to appear|submitted|accepted",
    re.I,
)
# What Scopus and PubMed write for an abstract, and PubMed for a title, that they do not have.
_NO_TEXT = re.compile(
    r"\[(?:no abstract|not) available\.?\]\.?"
    r"|(?:(?:publisher: )?abstract available from the publisher\.?\s*)+",
    re.I,
)
# An HTML, JATS or MathML tag: whether it closes, its name with and without a prefix, whether it is
# complete. In the patterns of pairs nothing begins again before it ends: of thousands without an
# end each would be followed to the end of the text.
_TAG = re.compile(
    r"<(/?)((?:[A-Za-z]+:)?([A-Za-z][\w.-]*))"
    r"(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))*\s*(/?)>"
)
# CDATA, which IOP also writes as an instruction, beside the same formula in another, <?MML ...?>;
# and comments.
_CDATA = re.compile(
    r"<!\[CDATA\[((?:(?!<!\[).)*?)\]\]>|<\?CDATA\s((?:(?!<\?).)*?)\?>"
    r"|<\?MML\s(?:(?!<\?).)*?\?>|<!--(?:(?!<!--).)*?-->",
    re.DOTALL,
)
# JATS gives one formula as TeX and as MathML; some TeX is a whole document.
_FORMULA = re.compile(
    r"<(?:\w+:)?(?P<kind>alternatives|inline-formula|disp-formula)\b[^<>]*>"
    r"(?:(?!</?(?:\w+:)?(?:(?P=kind)|tex-math)\b).)*<(?:\w+:)?tex-math\b[^<>]*>"
    r"(?P<tex>(?:(?!</?(?:\w+:)?tex-math\b).)*)</(?:\w+:)?tex-math>"
    r"(?:(?!</?(?:\w+:)?(?P=kind)\b).)*</(?:\w+:)?(?P=kind)>",
    re.DOTALL,
)
_PREAMBLE = re.compile(
    r"\\documentclass(?:(?!\\documentclass).)*?\\begin\s*\{document\}|\\end\s*\{document\}",
    re.DOTALL,
)
# A list in one text, as JSON, Python (so pandas in CSV) and numpy (without commas) write it.
_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+""", re.DOTALL)
_WRITTEN_LIST = re.compile(
    rf"\s*\[\s*(?:(?:{_ITEM.pattern})(?:\s*,\s*|\s+|(?=\])))*\]\s*", re.DOTALL
)
# Tags within words, of HTML and JATS; all others separate words.
_INLINE = {
    *("a", "abbr", "abbrev", "b", "bold", "cite", "code", "em", "email", "ext-link", "font", "i"),
    *("inf", "italic", "kbd", "mark", "monospace", "named-content", "overline", "roman", "s"),
    *("sans-serif", "sc", "scp", "small", "span", "strike", "strong", "styled-content", "sub"),
    *("sup", "tt", "u", "underline", "uri", "var"),
}
_NEVER_CLOSED = {"br", "hr", "img"}
# "&amp;amp;lt;": dumps escape what was escaped, once or twice too often.
_MOST_ESCAPED = 8
# "Doe, John A Jr", as MEDLINE writes it; "Doe, John (57204001122)", as Scopus does.
_GIVEN_SUFFIX = re.compile(r"(.+?)\s+((?:[JS]r|I{2,3}|IV|2nd|3rd|[4-9]th)\.?)")
_SCOPUS_ID = re.compile(r"\s*\(\d{6,}\)$")


class Location(NamedTuple):
    """Location of a paper: the file, and the number of its line, row or element."""

    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class ImportedPaper:
    """One paper of a user's file.

    Parameters
    ----------
    id : str
        Id in the file, or else the DOI, or else a hash of title and abstract.
    title, abstract : str
        One line each; not both empty.
    authors : list of str
        Names in the order of the paper.
    venue : str
        Empty if unknown, as ``doi``.
    year : int or None
        Year, extracted from a date if need be.
    doi : str
        Lower case, without ``https://doi.org/``.
    references : list of str
        Ids of cited papers, as in the file; unique.
    labels : list of str
        Names of subjects, keywords or tags; unique.
    extra : dict
        Other requested columns.
    location : Location
        File and line.
    id_from : str
        Where the id comes from.
    """

    id: str
    title: str
    abstract: str
    authors: list[str]
    venue: str
    year: int | None
    doi: str
    references: list[str]
    labels: list[str]
    extra: dict[str, Any]
    location: Location
    id_from: Literal["record", "doi", "text"] = "record"

    @property
    def text(self) -> Text:
        """Title and abstract, for an encoder."""
        return Text("paper", self.title, self.abstract)

    def fields(self) -> dict[str, Any]:
        """Return its fields, with the extra ones, as users write a paper; None for empty ones."""
        known = ("authors", "references", "labels", "venue", "year", "doi")
        own = {"id": self.id, "title": self.title, "abstract": self.abstract}
        return {**own, **{name: getattr(self, name) or None for name in known}, **self.extra}


def make_paper(record: Record, separator: str = ";", *, has_text: bool = True) -> ImportedPaper:
    """Return the paper of a record with our field names; other fields become ``extra``.

    Lists may be strings, split at ``separator``. Texts, authors and labels lose tags and entities;
    see ``plain_text``.
    Without ``has_text`` both may be empty.

    Raises
    ------
    DataError
        If a field is of the wrong type, the year is not one, or title and abstract are empty.
    """
    fields = {name: None if is_missing(value) else value for name, value in record.fields.items()}
    record = Record(record.path, record.line, fields)
    title, abstract, venue = (
        known_text(plain_text(_line(record, name))) for name in ("title", "abstract", "venue")
    )
    if has_text and not title and not abstract:
        raise record.error(
            NO_TEXT,
            value=fields.get("id"),
            fix="give it a text, name the columns that hold one, or leave it out with --skip-bad",
        )
    doi = short_doi(_line(record, "doi"))
    identifier, source = _identifier(record, doi, title, abstract)
    authors, labels = (
        [name for item in _list(record, field, separator) if (name := plain_text(item))]
        for field in ("authors", "labels")
    )
    references = _list(record, "references", separator)
    return ImportedPaper(
        identifier,
        title,
        abstract,
        authors,
        venue,
        year_of(record),
        doi,
        list(dict.fromkeys(references)),
        list(dict.fromkeys(labels)),
        {name: value for name, value in fields.items() if name not in FIELDS},
        Location(record.path, record.line),
        source,
    )


def known_text(text: str) -> str:
    """Return ``text`` unless it shows nothing or says that there is none; then it is empty."""
    return "" if is_blank(text) or _NO_TEXT.fullmatch(text) else text


def plain_text(text: str) -> str:
    """Return ``text`` on one line, without HTML, JATS or MathML tags and with entities decoded.

    A name in angle brackets that nothing closes stays: physics writes <p> and <E> for means. Of a
    formula that is there as TeX and as MathML, the TeX stays.

    >>> plain_text("<p>H<sub>2</sub>O &amp;amp; <i>E. coli</i>.</p><p>At <E> if a<b, c>d.</p>")
    'H2O & E. coli. At <E> if a<b, c>d.'
    """
    for _ in range(_MOST_ESCAPED):
        if "&" not in text or (decoded := html.unescape(text)) == text:
            break
        text = decoded
    if "<" in text:
        text = _CDATA.sub(lambda data: data[1] or data[2] or "", text)
        text = _FORMULA.sub(lambda formula: f" {_PREAMBLE.sub('', formula['tex'])} ", text)
        closed = {tag[2].lower() for tag in _TAG.finditer(text) if tag[1] or tag[4]}
        text = _TAG.sub(lambda tag: _in_place(tag, closed | _NEVER_CLOSED), text)
    return " ".join(text.split())


def _in_place(tag: re.Match[str], closed: Set[str]) -> str:
    """Return what replaces a tag: nothing, a space, or itself."""
    if tag[2].lower() not in closed:
        return tag[0]
    return "" if tag[3].lower() in _INLINE else " "


def _line(record: Record, name: str) -> str:
    """Return a string field on one line; empty if missing."""
    value = record.fields.get(name)
    if value is None:
        return ""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return " ".join(_with_value(record, name, value).text(name).split())


def _with_value(record: Record, name: str, value: Any) -> Record:
    return Record(record.path, record.line, {name: value})


def _identifier(
    record: Record, doi: str, title: str, abstract: str
) -> tuple[str, Literal["record", "doi", "text"]]:
    value = record.fields.get("id")
    if value not in (None, ""):
        return _with_value(record, "id", value).identifier("id"), "record"
    if doi:
        return doi, "doi"
    return text_id(title, abstract), "text"


def text_id(*parts: str) -> str:
    """Return the id of a text without one, such as of a title and an abstract: a hash of them."""
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=10).hexdigest()


def id_of(record: Record) -> str | None:
    """Return the id that a record gives its paper, whatever else is wrong; None if it has none."""
    try:
        identifier, source = _identifier(record, short_doi(_line(record, "doi")), "", "")
    except DataError:
        return None
    return None if source == "text" else identifier


def _list(record: Record, name: str, separator: str) -> list[str]:
    """Return a list field, or a string field's list; persons may be objects."""
    value = record.fields.get(name)
    if isinstance(value, str):
        value = list_in(value, separator)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, list):
        # Dumps have persons whose every field is empty.
        value = [person(item) or item for item in value if not _is_void(item)]
    items = _with_value(record, name, value).identifiers(name)
    return [text for item in items if (text := " ".join(item.split()))]


def _is_void(item: Any) -> bool:
    return is_missing(item) or (isinstance(item, Mapping) and first(item, *item) is None)


def list_in(text: str, separator: str) -> list[Any]:
    """Return the items of a list that is written as one text.

    >>> list_in("['a;b', 'c']", ";"), list_in("R&amp;D; c", ";")
    (['a;b', 'c'], ['R&D', ' c'])
    """
    if _WRITTEN_LIST.fullmatch(text) is None:
        return html.unescape(text).split(separator)
    try:
        items: list[Any] = json.loads(text)
    except ValueError:
        items = [_unescaped(item) for item in _ITEM.findall(text)]
    return items


def keywords_in(text: str) -> list[str]:
    """Return the keywords in one text, which semicolons or commas separate.

    >>> keywords_in("R&amp;D, graphs; trees;")
    ['R&D', 'graphs', 'trees']
    """
    words = map(str.strip, _KEYWORD_END.split(html.unescape(text)))
    return [word for word in words if word]


def _unescaped(item: str) -> str:
    try:
        return str(ast.literal_eval(item))
    except (SyntaxError, ValueError):  # an id such as 007, LaTeX whose backslashes are single
        return item.strip("'\"")


def first_name_first(name: str) -> str:
    """Return ``Given Family Jr.`` for ``Family, Given, Jr.``; names without commas unchanged.

    >>> first_name_first("Doe, John A, Jr."), first_name_first("Doe, John A 3rd")
    ('John A Doe Jr.', 'John A Doe 3rd')
    """
    name = _SCOPUS_ID.sub("", " ".join(name.split()))
    family, *given = (part.strip() for part in name.split(","))
    if len(given) == 1 and (suffixed := _GIVEN_SUFFIX.fullmatch(given[0])):
        given = [suffixed[1], suffixed[2]]
    return " ".join(part for part in (*given[:1], family, *given[1:]) if part)


def year_in(value: Any) -> int | None:
    """Return the year in a number, a date or a text; ``None`` if there is none.

    >>> year_in("May 2012"), year_in("forthcoming")
    (2012, None)
    """
    match = _YEAR.search(str(value))
    return int(match[0]) if match else None


def year_of(record: Record) -> int | None:
    """Return the year in the field ``year``, which may be a date.

    ``None`` if it is unknown, which includes empty values, "n.d." and "in press".

    Raises
    ------
    DataError
        If the field holds anything else.
    """
    value = record.fields.get("year")
    if value is None:
        return None
    year = year_in(value)
    if year is not None:
        return year
    if _NO_YEAR.fullmatch(str(value).strip()):
        return None
    raise DataError(
        "no year in the field 'year'",
        path=record.path,
        line=record.line,
        value=value,
        fix="name the column with the year or a date, or none (--column year=; in prepare table "
        "papers.columns.year=null)",
    )


def person(author: Any) -> str | None:
    """Return the name of an author given as a string or an object."""
    if not isinstance(author, Mapping):
        return author if isinstance(author, str) else None
    whole = first(author, "name", "literal")
    if whole is not None:
        return whole if isinstance(whole, str) else None
    middle = author.get("middle")
    parts = [first(author, "given", "first")]
    parts += middle if isinstance(middle, list) else [first(author, "middle")]
    parts += [first(author, name) for name in ("dropping-particle", "non-dropping-particle")]
    parts += [first(author, "family", "last"), first(author, "suffix")]
    parts = [part for part in parts if part is not None]
    return " ".join(parts) or None if all(isinstance(part, str) for part in parts) else None


def first(fields: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields that is neither empty nor a blank text, or ``None``."""
    for name in names:
        value = fields.get(name)
        is_empty = is_blank(value) if isinstance(value, str) else value in ([], {})
        if not is_empty and not is_missing(value):
            return value
    return None


def is_missing(value: Any) -> bool:
    """Return whether a value is None or, as arrays and frames write it, NaN."""
    return value is None or (isinstance(value, float) and value != value)
