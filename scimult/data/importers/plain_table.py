"""Rows of plain tables, by the names that columns usually have."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from html import unescape
from typing import Any

from scimult.data.importers.names import first_name_first, split_names
from scimult.data.importers.values import first

# Column names of plain tables, in order of preference.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": (
        *("id", "_id", "key", "paper_id", "paper-id", "publication id"),
        *("pmid", "eid", "ut", "ut (unique wos id)"),
    ),
    "title": ("title", "article title", "document title", "item title", "display_name"),
    "abstract": ("abstract", "abstract note", "text", "summary", "abstracttext"),
    "authors": ("author full names", "authors", "author", "author/s"),
    "venue": (
        *("venue", "journal", "publication title", "source title", "journal/book"),
        *("container-title", "booktitle", "anthology title"),
    ),
    "year": (
        *("year", "publication year", "publication_year", "published year", "pubyear"),
        "date",
    ),
    "doi": ("doi", "item doi"),
    "references": ("references", "referenced_works", "citations"),
    # The last three are a database's own, as in other exports of the same programs.
    "labels": (
        *("labels", "keywords", "author keywords", "manual tags", "tags"),
        *("keywords plus", "index keywords", "automatic tags"),
    ),
}
# Types of Zotero's items that have titles, such as "Full Text PDF", but are no works.
NO_WORKS = {"attachment", "note", "annotation"}
# Columns of Zotero, of Dimensions, and of Scopus and Web of Science, which write authors as "Doe,
# Jane; Roe, Karl".
_FAMILY_FIRST = {"item type", "dimensions url", "author full names"}


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of a user's table, with common column names in any case; empty for no work.

    References must be lists: in tables they are prose more often than ids.
    """
    lower: dict[str, Any] = {}
    for name, value in record.items():
        # Of "Title" and "title", as in two tables put together, the filled one counts.
        key = name.casefold().strip()
        lower[key] = value if first(lower, key) is None else lower[key]
    if lower.get("item type") in NO_WORKS:
        return {}
    fields = {name: first(lower, *synonyms) for name, synonyms in _SYNONYMS.items()}
    if isinstance(fields["authors"], str):
        fields["authors"] = _authors(fields["authors"], lower)
    if "gsrank" in lower:
        fields["venue"] = fields["venue"] or lower.get("source")
    if not isinstance(fields["references"], list):
        fields["references"] = None
    return fields


def _authors(text: str, columns: Container[str]) -> str | list[str]:
    """Return the authors in one text as the program wrote them whose columns these are."""
    if "journal/book" in columns:  # PubMed: "Doe J, Roe K."
        return text.rstrip(".").split(", ")
    if any(name in columns for name in _FAMILY_FIRST):
        return [first_name_first(name) for name in unescape(text).split(";")]
    if "gsrank" in columns:  # Publish or Perish: "J Doe, K Roe, ..."
        return [name for name in text.split(", ") if name not in ("...", "…")]
    if ";" in text:
        return text
    if "author(s) id" in columns:  # Scopus before 2023: "Doe J., Roe K."
        return text.split(", ")
    return split_names(text) if "item doi" in columns else text  # SpringerLink


def has_column(names: Iterable[str], *fields: str) -> bool:
    """Return whether a plain table's columns include one for any of these fields."""
    lower = {name.casefold().strip() for name in names}
    return any(lower.intersection(_SYNONYMS[field]) for field in fields)
