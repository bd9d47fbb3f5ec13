"""Scores by label frequency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scimult.evaluation.reporting.sources import ScoredSet
from scimult.table import Table, label, number, percents
from scimult.types import IntArray

BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Lower ends of the frequency ranges; each ends before the next."""


def by_frequency(scored: ScoredSet) -> Table | None:
    """Return scores by label frequency among the scored papers; None if unknown.

    Coarse sets list the F1 of every class. Papers of fine sets are grouped by the frequency of
    their rarest label, which requires the data. Other sets have no table.
    """
    if scored.has_one_label:
        return _classes(scored)
    fine = scored.facts.protocol == "classification_fine"
    return _rarest(scored) if fine and scored.dataset else None


def _classes(scored: ScoredSet) -> Table:
    tables = scored.tables
    gold = np.array(next(iter(tables.values())).column("gold"))
    frequency = {name: int((gold == name).sum()) for name in dict.fromkeys(gold.tolist())}
    rows = []
    for name in sorted(frequency, key=lambda name: (-frequency[name], name)):
        scores = [
            class_f1(gold, np.array(table.column("predicted")), name) for table in tables.values()
        ]
        title = scored.titles.get(name, name)
        rows.append([label(title), number(frequency[name], "{:,}"), *percents(scores)])
    return Table(
        f"{scored.name}: F1 of each class",
        ["class", "papers", *tables],
        1,
        rows,
        ["Classes by number of papers, most frequent first."],
    )


def class_f1(gold: NDArray[np.str_], predicted: NDArray[np.str_], name: str) -> float:
    """Return the F1 of one class that occurs among the gold labels."""
    hits = ((gold == name) & (predicted == name)).sum()
    return float(2 * hits / ((gold == name).sum() + (predicted == name).sum()))


def _rarest(scored: ScoredSet) -> Table:
    assert scored.dataset is not None, "only called with data"
    rarest_Q = rarest_label(scored.dataset.qrels.rows.values, scored.dataset.qrels.rows.owners)
    rows = []
    for low, high in zip(BINS, (*BINS[1:], None), strict=True):
        in_bin_Q = (rarest_Q >= low) & (rarest_Q < (high or np.inf))
        if not in_bin_Q.any():
            continue
        scores = [
            float(table.scores([scored.column])[in_bin_Q, 0].mean())
            for table in scored.tables.values()
        ]
        last = "" if high is None else f" to {high - 1}" if high > low + 1 else ""
        heading = f"{low} and more" if high is None else f"{low}{last}"
        papers = int(in_bin_Q.sum())
        rows.append([label(heading), number(papers, "{:,}"), *percents(scores)])
    note = "Papers are grouped by their rarest label: how many of the scored papers have it."
    if (rarest_Q == 1).any():
        note += " The first row has papers with a label that no other paper has."
    headings = ["papers with the rarest label", "papers", *scored.tables]
    title = f"{scored.name}: {scored.column} by label frequency"
    return Table(title, headings, 1, rows, [note])


def rarest_label(labels_P: IntArray, papers_P: IntArray) -> IntArray:
    """Return, for each paper, the frequency of its rarest label; every paper has a pair."""
    frequency_P = np.bincount(labels_P)[labels_P]
    rarest_Q = np.full(int(papers_P.max(initial=-1)) + 1, len(labels_P), dtype=np.int64)
    np.minimum.at(rarest_Q, papers_P, frequency_P)
    return rarest_Q
