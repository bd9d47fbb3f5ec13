"""Names of persons: as objects, family name first, run together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scimult.data.importers.values import first

# What no family name ends with, and what some have, as given names do: LeCun, DeVito, LaToya.
_NEVER_LAST = re.compile(r"(?:^|[\s-])(?:Mc|Mac|Fitz)$")
_PARTS = {"De", "Di", "Du", "La", "Le", "Van"}
# "Doe, John A Jr", as MEDLINE writes it; "Doe, John (57204001122)", as Scopus does.
_GIVEN_SUFFIX = re.compile(r"(.+?)\s+((?:[JS]r|I{2,3}|IV|2nd|3rd|[4-9]th)\.?)")
_SCOPUS_ID = re.compile(r"\s*\(\d{6,}\)$")


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
