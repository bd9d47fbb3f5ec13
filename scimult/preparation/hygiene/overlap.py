"""Find training texts that are also texts of evaluation sets.

Shape legend: N training texts, E evaluation texts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from scimult.data.importers.doi import short_doi
from scimult.data.manifest import OverlapEntry
from scimult.data.text_store import TEXTS_PER_CHUNK, TextStore
from scimult.preparation.hygiene.config import EvaluationRole, HygieneConfig
from scimult.preparation.hygiene.evaluation_sets import EvaluationText, find_sets, read_set
from scimult.preparation.hygiene.minhash import Sketches, SortedBands, jaccard, text_shingles
from scimult.preparation.hygiene.normal_forms import hash64, text_words, title_key
from scimult.types import BoolArray, Text

ROLES: tuple[EvaluationRole, ...] = ("query", "answer", "candidate")
# How two texts may match, most reliable first.
WAYS = ("doi", "title", "text", "near")


def find_overlap(
    store: TextStore, folder: Path, dois: Sequence[str | None], config: HygieneConfig
) -> tuple[list[OverlapEntry], dict[EvaluationRole, BoolArray]]:
    """Compare all papers and queries of the store with all texts of the sets below ``folder``.

    Two texts match if their DOIs, sufficiently long title keys or all their words are equal, or if
    they are near-duplicates. Labels are not compared. Return the overlap of each set with the store
    and, for each role, a mask of the N texts that match such a text.
    """
    # Each text once per role: a query paper is often a candidate too.
    sets = {name: list(dict.fromkeys(read_set(p))) for name, p in find_sets(folder).items()}
    index = TextIndex([text for texts in sets.values() for text in texts], config)
    rows_of = index.rows_in(store, dois, "overlap with evaluation sets")
    rows = {role: np.zeros(len(store), dtype=np.bool_) for role in ROLES}
    for number, hits in rows_of.items():
        rows[index.texts[number].role][list(hits)] = True
    reports, first = [], 0
    for name, texts in sets.items():
        ways = [rows_of.get(number, {}) for number in range(first, first + len(texts))]
        reports.append(reported(name, texts, ways))
        first += len(texts)
    return reports, rows


class TextIndex:
    """Evaluation texts, indexed by every key that a training text may match."""

    def __init__(self, texts: list[EvaluationText], config: HygieneConfig) -> None:
        self.texts = texts
        self._config = config
        self._by_key: dict[int, list[int]] = defaultdict(list)
        # Near-duplicates are searched among distinct texts: their number per band is limited.
        self._by_text: dict[Text, list[int]] = defaultdict(list)
        for number, entry in enumerate(texts):
            self._by_text[entry.text].append(number)
            for way, key in _keys(entry.text, entry.doi, config):
                self._by_key[hash64(f"{way}:{key}")].append(number)
        self._distinct = list(self._by_text)
        sketches = Sketches.empty(len(self._distinct), config.near)
        for start in range(0, len(self._distinct), TEXTS_PER_CHUNK):
            chunk = self._distinct[start : start + TEXTS_PER_CHUNK]
            sketches.fill(start, chunk, config.near)
        self._bands = SortedBands(sketches, config.near)

    def rows_in(
        self, store: TextStore, dois: Sequence[str | None], label: str
    ) -> dict[int, dict[int, str]]:
        """Return the rows of the texts that match each evaluation text, and how they match."""
        rows_of: dict[int, dict[int, str]] = defaultdict(dict)
        for start, texts in store.chunks(label):
            # The most reliable of several ways comes first, and stays.
            for position, number, way in self._matches(texts, dois[start : start + len(texts)]):
                rows_of[number].setdefault(start + position, way)
        return rows_of

    def _matches(
        self, texts: Sequence[Text], dois: Sequence[str | None]
    ) -> Iterator[tuple[int, int, str]]:
        """Yield (position of a training text, number of an evaluation text, way they match)."""
        for position, (text, doi) in enumerate(zip(texts, dois, strict=True)):
            if text.kind != "label":
                for way, key in _keys(text, doi or "", self._config):
                    for number in self._by_key.get(hash64(f"{way}:{key}"), ()):
                        yield position, number, way
        near = self._config.near
        sketches = Sketches.empty(len(texts), near)
        sketches.fill(0, texts, near)
        for position, other in zip(*self._bands.candidates(sketches), strict=True):
            pair = texts[position], self._distinct[other]
            similarity = jaccard(*(text_shingles(text, near) for text in pair))
            if pair[0].kind != "label" and similarity >= near.threshold:
                for number in self._by_text[pair[1]]:
                    yield int(position), number, "near"


def _keys(text: Text, doi: str, config: HygieneConfig) -> Iterator[tuple[str, str]]:
    """Yield the ways in which another text may match, with the key it must share."""
    if key := short_doi(doi):
        yield "doi", key
    # A query may be the title of its paper, as all of BEIR's SCIDOCS are.
    if len(key := title_key(text.title)) >= config.min_title:
        yield "title", key
    # Queries of any length: two equal short queries are the same query.
    whole = "".join(text_words(text))
    if whole and (text.kind == "query" or len(whole) >= config.min_title):
        yield "text", whole


def reported(
    name: str, texts: Sequence[EvaluationText], ways: Sequence[Mapping[int, str]]
) -> OverlapEntry:
    """Return the overlap of a set whose texts match training texts, by row, in these ways."""
    total = Counter(text.role for text in texts)
    hits = Counter(text.role for text, way in zip(texts, ways, strict=True) if way)
    best = Counter(min(way.values(), key=WAYS.index) for way in ways if way)
    return OverlapEntry(
        set=name,
        texts={role: total[role] for role in ROLES},
        found={role: hits[role] for role in ROLES},
        ways={way: best[way] for way in WAYS if best[way]},
    )
