r"""Marks of Unicode: accents, vowel signs and tones that belong to the letter before them.

Python's ``\w`` leaves them out, so it splits words of Hindi and Thai, and of any language whose
accents are characters of their own.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

MARK = r"\p{M}"
"""Stands for all marks in the patterns here, as in other libraries of regular expressions."""
# The blocks with marks. Asking for the category of all 1.1 million characters takes ten times as
# long, in every process.
_BLOCKS = (range(0x300, 0x20000), range(0xE0000, 0xE0200))


def lowered(text: str) -> str:
    """Return ``text`` in lower case, with letters and marks composed (NFC).

    >>> lowered("E\u0301"), lowered("J\u030c") == lowered("\u01f0")
    ('é', True)
    """
    text = text.lower()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


@cache
def with_marks(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern whose classes of characters may contain ``\p{M}``."""
    return re.compile(pattern.replace(MARK, _all_marks()))


@cache
def _all_marks() -> str:
    """Return all marks as the inside of a class of characters."""
    ranges: list[list[int]] = []
    for code in (code for block in _BLOCKS for code in block):
        if not unicodedata.category(chr(code)).startswith("M"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
