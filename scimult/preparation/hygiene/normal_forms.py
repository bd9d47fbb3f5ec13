"""Normal forms of titles and texts, without trivial differences."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from scimult.types import Text

_WORD = re.compile(r"[^\W_]+")
# Lower-cases ASCII letters, keeps digits, and turns all else into spaces.
_ASCII = "".join(chr(i).lower() if chr(i).isalnum() else " " for i in range(128))


def words(text: str) -> list[str]:
    """Return the runs of letters and digits, without case, accents and typographic variants."""
    if text.isascii():  # same result, several times faster
        return text.translate(_ASCII).split()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return _WORD.findall("".join(c for c in decomposed if not unicodedata.combining(c)))


def title_key(title: str) -> str:
    """Return a title's letters and digits, so that LaTeX and Unicode accents are equal."""
    return "".join(words(title))


def hash64(key: str) -> int:
    """Return a 64-bit hash: two of a million keys collide once in 40 million times."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def text_words(text: Text) -> list[str]:
    """Return the words of title and body."""
    return words(f"{text.title} {text.body}")
