"""Measure how many texts and trained pairs a prepared folder shares with evaluation sets.

Shape legend: Q queries, C candidates, N training texts, P pairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scimult.data.prepared import PreparedData
from scimult.data.text_store import TextStore
from scimult.preparation.hygiene.config import EvaluationRole, HygieneConfig
from scimult.preparation.hygiene.evaluation_sets import EvaluationText
from scimult.preparation.hygiene.normal_forms import title_key
from scimult.preparation.hygiene.overlap import ROLES, TextIndex, reported
from scimult.types import IntArray, Text

Rows = Mapping[Text, Mapping[int, str]]
"""The rows of the training texts that match each evaluation text, and how they match."""
Pairs = set[tuple[int, int]]
"""Rows of training pairs."""


@dataclass(frozen=True)
class AuditedSet:
    """Texts and relevant pairs of one evaluation set.

    Candidates are documents, papers or labels; ``relevant`` are those of each query, ``None`` if
    the set has no such pairs.
    """

    query_ids: Sequence[str]
    queries: Sequence[Text]
    candidate_ids: Sequence[str]
    candidates: Sequence[Text]
    relevant: Sequence[IntArray] | None = None

    def texts(self) -> tuple[list[str], list[EvaluationText]]:
        """Return ids and texts, queries first; candidates that answer a query are answers."""
        answers = {int(row) for rows in self.relevant or () for row in rows}
        texts = [EvaluationText("query", text, "") for text in self.queries]
        for row, text in enumerate(self.candidates):
            role: EvaluationRole = "answer" if row in answers else "candidate"
            texts.append(EvaluationText(role, text, ""))
        return [*self.query_ids, *self.candidate_ids], texts


def audit(data: PreparedData, sets: Mapping[str, AuditedSet]) -> dict[str, dict[str, Any]]:
    """Find the texts and pairs of evaluation sets in a prepared folder.

    Texts match as in `scimult.preparation.hygiene.overlap`, except by DOI, which evaluation
    sets do not give; labels match by name, ignoring case and punctuation. An id is known if a
    training text has it in any namespace, which says little about numeric ids. A pair is known
    if texts that match its query and its candidate are a positive pair of the train split, in
    either direction: both train the same similarity.

    Return for each set ``texts``, ``found`` and ``ids`` by role, ``ways`` (how texts match), and
    ``pairs`` and ``pairs_found`` if the set has pairs.
    """
    rows_of = {
        **_equal_texts(data.texts, _distinct(sets.values())),
        **_equal_labels(data.texts, _distinct(sets.values(), labels=True)),
    }
    trained = _trained_pairs(data, rows_of)
    known = {identifier.partition(":")[2] for identifier in data.texts.ids}
    return {name: _report(name, entry, rows_of, trained, known) for name, entry in sets.items()}


def _distinct(sets: Iterable[AuditedSet], *, labels: bool = False) -> list[Text]:
    texts = (text for entry in sets for text in (*entry.queries, *entry.candidates))
    return list(dict.fromkeys(text for text in texts if (text.kind == "label") == labels))


def _equal_texts(store: TextStore, texts: list[Text]) -> Rows:
    index = TextIndex([EvaluationText("query", text, "") for text in texts], HygieneConfig())
    rows_of = index.rows_in(store, [None] * len(store), "evaluation sets in training data")
    return {texts[number]: rows for number, rows in rows_of.items()}


def _equal_labels(store: TextStore, labels: list[Text]) -> Rows:
    trained = np.flatnonzero(np.array(store.kinds) == "label")
    by_name: dict[str, list[int]] = defaultdict(list)
    for row, text in zip(trained.tolist(), store.texts(trained), strict=True):
        by_name[title_key(text.title)].append(row)
    return {
        label: dict.fromkeys(by_name.get(title_key(label.title), ()), "title") for label in labels
    }


def _trained_pairs(data: PreparedData, rows_of: Rows) -> Pairs:
    """Return the positive pairs of the train split between matching, different texts."""
    matches_N = np.zeros(len(data.texts), dtype=np.bool_)
    for rows in rows_of.values():
        matches_N[list(rows)] = True
    pairs: Pairs = set()
    for file in data.pairs("train"):
        queries, candidates = file.queries[file.positives.owners], file.positives.values
        known = matches_N[queries] & matches_N[candidates] & (queries != candidates)
        pairs.update(zip(queries[known].tolist(), candidates[known].tolist(), strict=True))
    return pairs


def _report(
    name: str, entry: AuditedSet, rows_of: Rows, trained: Pairs, known_ids: Collection[str]
) -> dict[str, Any]:
    ids, texts = entry.texts()
    known = Counter(text.role for id_, text in zip(ids, texts, strict=True) if id_ in known_ids)
    overlap = reported(name, texts, [rows_of.get(text.text, {}) for text in texts])
    report: dict[str, Any] = {
        "texts": overlap.texts,
        "found": overlap.found,
        "ids": {role: known[role] for role in ROLES},
        "ways": overlap.ways,
    }
    if entry.relevant is not None:
        report["pairs"] = sum(len(rows) for rows in entry.relevant)
        report["pairs_found"] = _known_pairs(entry, rows_of, trained)
    return report


def _known_pairs(entry: AuditedSet, rows_of: Rows, trained: Pairs) -> int:
    known = 0
    for query, relevant in zip(entry.queries, entry.relevant or (), strict=True):
        queries = rows_of.get(query, {})
        for row in relevant if queries else ():
            answers = rows_of.get(entry.candidates[row], {})
            pairs = ((first, second) for first in queries for second in answers)
            known += any(pair in trained or pair[::-1] in trained for pair in pairs)
    return known
