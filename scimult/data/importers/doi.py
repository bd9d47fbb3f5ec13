"""DOIs as texts and links give them."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

# No DOI has one of these quotes; a link in HTML ends with one.
_DOI = re.compile(r'10\.\d+(?:\.\d+){0,9}/[^\s"“”«»]+')
_LINK = re.compile(r"(?<![\w.-])(?:https?://)?(?:dx\.|www\.)?doi\.org/([^\s\"“”«»]+)", re.I)
# A query or a fragment of a link. "#" ends some DOIs that the SICI standard made: "...CO;2-#".
_AFTER = re.compile(r"\?.*|(?<!;2-)#.*")
_LONGEST = 2000
_NEVER_LAST = ".,;'‘’`"
_OPENING = {")": "(", "]": "[", "}": "{", ">": "<"}


def short_doi(text: str) -> str:
    """Return the DOI in ``text``, lower-cased and without its resolver; empty if there is none.

    What stands around it goes: quotes, a full stop, brackets that do not open within it, characters
    without width. A link's ``%2F`` is decoded, and its query and fragment are dropped.

    >>> short_doi("(doi:10.1016/S0140-6736(05)67889-9)."), short_doi("//doi.org/10.1000%2FA?x=1")
    ('10.1016/s0140-6736(05)67889-9', '10.1000/a')
    """
    if not text.isascii():
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    link = _LINK.search(text)
    match = _DOI.search(unquote(_AFTER.sub("", link[1]))) if link else None
    match = match or _DOI.search(text)
    if match is None or len(match[0]) > _LONGEST:
        return ""
    doi = match[0]
    while doi[-1] in _NEVER_LAST or doi.count(doi[-1]) > doi.count(_OPENING.get(doi[-1], doi[-1])):
        doi = doi[:-1]
    return doi.lower() if _DOI.fullmatch(doi) else ""


def linked_doi(address: str) -> str:
    """Return the DOI in an address of its resolver; empty for another address.

    A publisher's often goes on after the DOI: ``.../doi/10.1002/abc.123/full``.
    """
    return short_doi(address) if _LINK.search(address) else ""
