"""Forms of titles, DOIs and texts in which trivial differences are gone."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from scimult.types import Text

_WORD = re.compile(r"[^\W_]+")
# Letters of ASCII in lower case, digits, and a space for all else.
_ASCII = "".join(chr(i).lower() if chr(i).isalnum() else " " for i in range(128))
_DOI_PREFIX = re.compile(r"^(https?://)?(dx\.)?doi\.org/|^doi:\s*")


def words(text: str) -> list[str]:
    """Return the runs of letters and digits, without case, accents and typographic variants."""
    if text.isascii():  # several times as fast, and the same
        return text.translate(_ASCII).split()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return _WORD.findall("".join(c for c in decomposed if not unicodedata.combining(c)))


def title_key(title: str) -> str:
    """Return a title's letters and digits, so that LaTeX and Unicode accents are the same."""
    return "".join(words(title))


def doi_key(doi: str) -> str:
    """Return a DOI in lower case without resolver or scheme; empty if it is none."""
    bare = _DOI_PREFIX.sub("", doi.strip().lower())
    return bare if bare.startswith("10.") and "/" in bare else ""


def hash64(key: str) -> int:
    """Return a key's hash in 64 bits: of a million keys two collide once in 40 million times."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def shingles(text_words: list[str], length: int) -> set[str]:
    """Return the distinct runs of ``length`` words; empty if there are fewer words."""
    return {
        " ".join(text_words[start : start + length])
        for start in range(len(text_words) - length + 1)
    }


def text_words(text: Text) -> list[str]:
    """Return the words of title and body."""
    return words(f"{text.title} {text.body}")
