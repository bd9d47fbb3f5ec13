"""Overlap of evaluation sets with training data, as recorded in results and shown in tables."""

from __future__ import annotations

from collections.abc import Iterable

from scimult.config import StrictConfig
from scimult.table import ABSENT, Cell, Table, texts

TITLE = "Evaluation sets in training data"
ROLES = {"query": "queries", "answer": "relevant", "candidate": "others"}
WAYS = {"doi": "DOI", "title": "title", "text": "all words", "near": "near-duplicate"}


class Contamination(StrictConfig):
    """Texts and pairs of a set that are also in a prepared folder.

    Attributes
    ----------
    folder, fingerprint : str
        The prepared folder, and the hash in its manifest.
    texts, found, ids : dict
        By role (``query``, ``answer``, ``candidate``): the number of the set's texts, of those
        equal to a training text, and of those that share an id with one.
    ways : dict
        Number of matches by ``doi``, ``title``, ``text`` (all words) or ``near`` (duplicates).
    pairs, pairs_found : int, optional
        Relevant pairs, and those trained on; None where a set has no pairs.
    """

    folder: str
    fingerprint: str
    texts: dict[str, int]
    found: dict[str, int]
    ids: dict[str, int]
    ways: dict[str, int]
    pairs: int | None = None
    pairs_found: int | None = None


def contamination_table(audits: Iterable[tuple[str, Contamination | None]]) -> Table | None:
    """Return a table of each set's overlap with training data; None if nothing was audited.

    Equal audits of several systems share a row.
    """
    rows: list[list[Cell]] = []
    ways: dict[str, None] = {}
    for name, audit in audits:
        if audit is not None and (row := _row(name, audit)) not in rows:
            rows.append(row)
            listed = ", ".join(f"{WAYS[way]} {count:,}" for way, count in audit.ways.items())
            if listed:
                ways[f"{name} ({audit.folder}): matched by {listed}."] = None
    if not rows:
        return None
    headings = ["set", "training data", *ROLES.values(), "relevant pairs", "ids"]
    notes = [
        "How many texts of a set (queries, relevant candidates, other candidates) equal a training "
        "text, and how many of its relevant pairs are trained on, in either direction. Labels, and "
        "candidates of citation sets, are in training data by design; queries and pairs should be "
        "0.",
        "ids: texts that share an id with a training text, in any namespace; for numeric ids that "
        "says little.",
        *ways,
    ]
    return Table(TITLE, headings, 2, rows, notes)


def _row(name: str, audit: Contamination) -> list[Cell]:
    cells = [_share(audit.found[role], audit.texts[role]) for role in ROLES]
    pairs = Cell(ABSENT) if audit.pairs is None else _share(audit.pairs_found or 0, audit.pairs)
    ids = sum(audit.ids.values())
    return [*texts(name, audit.folder), *cells, pairs, Cell(f"{ids:,}", ids)]


def _share(hits: int, count: int) -> Cell:
    if not count:
        return Cell(ABSENT)
    return Cell(f"{hits:,} of {count:,}", hits / count)
