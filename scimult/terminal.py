"""Texts and counts as people see them: unsafe characters escaped, blanks, plurals."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

# Control characters except tab and line feed, line and paragraph separators, directional marks
# and overrides, and lone surrogates (undecodable bytes of file names).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

# Characters that break lines of a file or steer a terminal; other invisible ones, as a no-break
# space or the joiners of Persian, are part of a word.
_BREAKING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_BLANK = ("Cc", "Cf", "Zl", "Zp", "Zs")
_Y = re.compile("(?<![aeiou])y$")


def is_one_line(text: str) -> bool:
    """Return whether ``text`` has neither line breaks nor control characters."""
    return _BREAKING.search(text) is None


def is_blank(text: str) -> bool:
    r"""Return whether ``text`` has nothing but spaces, controls and characters without width.

    >>> is_blank(" \u200b\ufeff"), is_blank("\u200ba")
    (True, False)
    """
    return all(unicodedata.category(character) in _BLANK for character in text)


def trimmed(text: str) -> str:
    r"""Return ``text`` without what `is_blank` calls so at its ends.

    >>> trimmed(" \u200bada lovelace\u200e ")
    'ada lovelace'
    """
    places = [place for place, character in enumerate(text) if not is_blank(character)]
    return text[places[0] : places[-1] + 1] if places else ""


def is_unicode(text: str) -> bool:
    r"""Return whether ``text`` can be written in UTF-8: it has no lone surrogate.

    >>> is_unicode("é"), is_unicode("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shortened(text: str, most: int) -> str:
    """Return ``text``, or its beginning and an ellipsis, ``most`` characters together.

    >>> shortened("graph", 5), shortened("graphs", 5)
    ('graph', 'grap…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def counted(count: int, thing: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "paper"), counted(0, "query"), counted(1200, "class")
    ('1 paper', '0 queries', '1,200 classes')
    """
    if count != 1:
        thing = _Y.sub("ie", thing) + ("es" if thing.endswith("s") else "s")
    return f"{count:,} {thing}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return the first names, and the number of the others.

    >>> listed(["id", "title"]), listed(["id", "title", "year"], most=1)
    ('id, title', 'id and 2 more')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def tally(counts: Mapping[str, int]) -> str:
    """Return the counts that are not zero, after what they count: nouns of several words, too.

    >>> tally({"papers": 1, "labels": 0, "hard negatives of one link": 1200})
    'papers: 1; hard negatives of one link: 1,200'
    """
    return "; ".join(f"{what}: {count:,}" for what, count in counts.items() if count)


def visible(text: str) -> str:
    r"""Return ``text`` with every unsafe character escaped, as in ``\x1b``."""
    return _UNSAFE.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
