"""Names of persons that run together."""

from __future__ import annotations

import re

# What no family name ends with, and what some have, as given names do: LeCun, DeVito, LaToya.
_NEVER_LAST = re.compile(r"(?:^|[\s-])(?:Mc|Mac|Fitz)$")
_PARTS = {"De", "Di", "Du", "La", "Le", "Van"}


def split_names(text: str) -> list[str]:
    """Return the persons in one text without anything between them, as SpringerLink writes it.

    One begins at a capital within a word. As all have a given name, a single word is a part of the
    name before it, or of the next one.

    >>> split_names("Ana NúñezYann LeCunBo McLeod")
    ['Ana Núñez', 'Yann LeCun', 'Bo McLeod']
    """
    pieces = [""]
    for before, letter in zip(f" {text}", text, strict=False):
        if before.islower() and letter.isupper() and not _NEVER_LAST.search(pieces[-1]):
            pieces.append("")
        pieces[-1] += letter
    names: list[str] = []
    for piece in pieces:
        is_part = " " not in piece and piece not in _PARTS
        if names and (is_part or " " not in names[-1]):
            names[-1] += piece
        else:
            names.append(piece)
    return names
