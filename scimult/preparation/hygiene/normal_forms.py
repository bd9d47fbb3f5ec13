"""Normal forms of titles and texts, without trivial differences."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from scimult.data.marks import with_marks
from scimult.types import Text

_WORD = r"[^\W_]+(?:[\p{M}]+[^\W_]*)*"
# Latin, Greek and Cyrillic letters lose their accents, Hebrew and Arabic ones the points that most
# texts leave out. Elsewhere a mark is a vowel, or makes another letter: it stays.
_BASES = (
    r"0-9A-Za-z\u00aa-\u02af\u0370-\u052f\u05d0-\u05f2\u0620-\u06d3\u06d5-\u06ff\u0750-\u077f"
    r"\u0870-\u08c9\u1c80-\u1c8f\u1d00-\u1dbf\u1e00-\u1fff\u2c60-\u2c7f\ua640-\ua69f\ua720-\ua7ff"
    r"\uab30-\uab6f"
)
# The last ones choose between glyphs of a character.
_DROPPED = rf"(?<=[{_BASES}])[\p{{M}}]+|[\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
# Latin letters with a stroke, without a dot, and ligatures, which Unicode does not decompose.
FOLDED = str.maketrans(
    {**dict(zip("øłđðħŧıȷ", "olddhtij", strict=True)), "æ": "ae", "œ": "oe", "þ": "th", "ŋ": "ng"}
)
# In LaTeX, accents that are letters, and letters of two: Erd\H{o}s, \AA ngstr\"om.
_ACCENTS = re.compile(r"\\[GHbcdkrtuv](?:\s*(?=\{)|\s+(?=[A-Za-z\\]))")
_LETTERS = re.compile(r"\\([aA]{2}|[dD][jJhH])(?![A-Za-z])")
# Lower-cases ASCII letters, keeps digits, and turns all else into spaces.
_ASCII = "".join(chr(i).lower() if chr(i).isalnum() else " " for i in range(128))


def words(text: str) -> list[str]:
    """Return the runs of letters and digits, without case, accents and typographic variants.

    >>> words("Poincaré’s ﬁrst"), words("हिन्दी ガラス") == ["हिन्दी", "ガラス"]
    (['poincare', 's', 'first'], True)
    """
    if "\\" in text:
        text = _LETTERS.sub(lambda letter: letter[1][0], _ACCENTS.sub("", text))
    if text.isascii():  # same result, several times faster
        return text.translate(_ASCII).split()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    bare = unicodedata.normalize("NFKC", with_marks(_DROPPED).sub("", decomposed))
    runs: list[str] = with_marks(_WORD).findall(bare.translate(FOLDED))
    return runs


def title_key(title: str) -> str:
    """Return a title's letters and digits, so that LaTeX and Unicode accents are equal."""
    return "".join(words(title))


def hash64(key: str) -> int:
    """Return a 64-bit hash: two of a million keys collide once in 40 million times."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def text_words(text: Text) -> list[str]:
    """Return the words of title and body."""
    return words(f"{text.title} {text.body}")
