"""The cleaning step of ``scimult prepare``: remove duplicates and texts of evaluation sets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.prepared import REJECTS_FILE
from scimult.data.text_store import TextStore, open_metadata
from scimult.errors import DataError
from scimult.files import write_json
from scimult.preparation.collected import Collected
from scimult.preparation.hygiene.compact import (
    RowMap,
    compact_metadata,
    compact_pairs,
    compact_texts,
)
from scimult.preparation.hygiene.config import HygieneConfig
from scimult.preparation.hygiene.duplicates import find_duplicates
from scimult.preparation.hygiene.overlap import find_overlap
from scimult.types import BoolArray, IntArray

REPORT_FILE = "hygiene.json"
# Increase this when the rules change, so that cached results of older rules are not reused.
VERSION = "7"


def clean(source: Path, target: Path, collected: Collected, config: HygieneConfig) -> None:
    """Write the corpus in ``source`` without duplicates and evaluation texts to ``target``.

    ``target`` is an empty folder; it gets the same files, ``collected``, ``aliases.arrow`` and
    ``hygiene.json`` with all counts. The rejects of ``collected``, the pairs of ``source``, collect
    the texts refused as duplicates.
    """
    store = TextStore.open(source)
    if (source / REJECTS_FILE).exists():
        shutil.copy2(source / REJECTS_FILE, target / REJECTS_FILE)
    collected.rejects.log = target / REJECTS_FILE
    dois = _dois(source, len(store))
    report: dict[str, Any] = {}
    keeper_N = np.arange(len(store), dtype=np.int64)
    removed_N = np.zeros(len(store), dtype=np.bool_)
    if config.duplicates != "ignore":
        keeper_N, duplicates = find_duplicates(store, dois, config)
        report["duplicates"] = dict(duplicates)
        if config.duplicates == "refuse":
            removed_N |= _refused(store, keeper_N, collected)
            keeper_N = np.arange(len(store), dtype=np.int64)
    if config.evaluation_folder is not None:
        overlap, rows_of = find_overlap(store, config.evaluation_folder, dois, config)
        report["overlap"] = [entry.model_dump() for entry in overlap]
        for role in config.decontaminate:
            removed_N |= rows_of[role]
    rows = RowMap(keeper_N, removed_N)
    report["texts"] = {"read": len(store), "kept": int(rows.is_kept_N.sum())}
    compact_texts(source, target, rows)
    compact_metadata(source, target, rows)
    pairs, counts = compact_pairs(collected, rows, target)
    report["pairs"] = {what: number for what, number in counts.items() if number}
    pairs.save(target)
    write_json(target / REPORT_FILE, report)


def _refused(store: TextStore, keeper_N: IntArray, collected: Collected) -> BoolArray:
    """Reject every text that repeats an earlier one."""
    repeated_N = np.asarray(keeper_N != np.arange(len(keeper_N)), dtype=np.bool_)
    repeated = np.flatnonzero(repeated_N)
    ids, keepers = store.ids_at(repeated), store.ids_at(keeper_N[repeated])
    for identifier, keeper in zip(ids, keepers, strict=True):
        collected.rejects.reject(
            DataError(
                "text repeats another one",
                value=(identifier, keeper),
                fix="remove one of them, set hygiene.duplicates=merge, or pass --skip-bad",
            )
        )
    return repeated_N


def _dois(folder: Path, count: int) -> Sequence[str | None]:
    """Return the DOI of every text; only papers have one."""
    table = open_metadata(folder)
    dois: list[str | None] = [None] * count
    if "doi" in table.column_names and table.num_rows:
        start = table.column("row")[0].as_py()
        dois[start : start + table.num_rows] = table.column("doi").to_pylist()
    return dois
