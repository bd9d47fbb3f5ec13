"""What a data card tells: text lengths, languages, label frequencies and example negatives.

Shape legend: N texts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from scimult.data.pairs import SPLITS, PairFile, RuleBits
from scimult.data.prepared import PreparedData
from scimult.data.text_store import KINDS, TextStore, open_metadata
from scimult.types import IntArray, Kind, Text

QUANTILES = (0.05, 0.5, 0.95, 1.0)
# Language identification is unreliable for shorter texts.
MIN_WORDS_FOR_LANGUAGE = 20
NEGATIVES_PER_CHUNK = 1 << 20


@dataclass(frozen=True)
class TextStatistics:
    """Statistics over all texts, and languages of a sample of papers.

    ``words`` has the number of whitespace-separated words of every text of a kind, ``without_body``
    the number of texts of each kind without an abstract or definition, and ``languages`` the papers
    of the sample by ISO 639-1 code.
    """

    words: dict[Kind, IntArray]
    without_body: dict[Kind, int]
    languages: Counter[str] = field(default_factory=Counter)


def text_statistics(store: TextStore, sample: int) -> TextStatistics:
    """Compute text statistics in one pass.

    Languages (py3langid) are those of at most ``sample`` papers, drawn from those with at least
    ``MIN_WORDS_FOR_LANGUAGE`` words.
    """
    lengths_N = np.zeros(len(store), dtype=np.int64)
    kinds_N = np.zeros(len(store), dtype=np.int8)
    without: Counter[Kind] = Counter()
    for start, texts in store.chunks("lengths of texts"):
        stop = start + len(texts)
        lengths_N[start:stop] = [len(t.title.split()) + len(t.body.split()) for t in texts]
        kinds_N[start:stop] = [KINDS.index(text.kind) for text in texts]
        without.update(text.kind for text in texts if not text.body.strip())
    long_papers = np.flatnonzero((kinds_N == 0) & (lengths_N >= MIN_WORDS_FOR_LANGUAGE))
    size = min(sample, len(long_papers))
    papers = np.random.default_rng(0).choice(long_papers, size, replace=False)
    return TextStatistics(
        {kind: lengths_N[kinds_N == code] for code, kind in enumerate(KINDS)},
        {kind: without[kind] for kind in KINDS},
        _languages(store, np.sort(papers)),
    )


def label_frequencies(data: PreparedData) -> dict[str, IntArray]:
    """Return the number of papers that carry each label, by namespace."""
    table = open_metadata(data.folder)
    rows = [chunk.values.to_numpy() for chunk in table.column("labels").chunks]
    counts = np.bincount(np.concatenate([np.empty(0, np.int64), *rows]), minlength=len(data.texts))
    return {
        namespace: counts[first:stop]
        for namespace, (first, stop) in data.manifest.label_rows.items()
    }


def quantiles(values: IntArray) -> list[int]:
    """Return the 5 %, 50 % and 95 % quantiles and the maximum; zeros if there are no values."""
    if not len(values):
        return [0] * len(QUANTILES)
    return [int(value) for value in np.quantile(values, QUANTILES, method="nearest")]


def _languages(store: TextStore, rows: IntArray) -> Counter[str]:
    if not len(rows):
        return Counter()
    from py3langid import classify  # importing it loads its model

    return Counter(classify(f"{text.title} {text.body}")[0] for text in store.texts(rows))


@dataclass(frozen=True)
class Example:
    """One hard negative with its query and a positive of its group."""

    source: str
    task: str
    query: Text
    positive: Text
    negative: Text


def draw_examples(data: PreparedData, count: int, seed: int = 0) -> dict[str, list[Example]]:
    """Draw at most ``count`` hard negatives of each rule from all pair files of a mined folder.

    A negative that several rules gave may be drawn for each of them. The result is empty if the
    folder does not record which rules gave its negatives.
    """
    files = [file for split in SPLITS for file in data.pairs(split)]
    by_rule: dict[str, list[tuple[PairFile, int]]] = defaultdict(list)
    for file in files:
        for bit, rule in enumerate(file.rules):
            by_rule[rule].append((file, bit))
    return {
        rule: _draw(data, sources, count, np.random.default_rng([seed, number]))
        for number, (rule, sources) in enumerate(by_rule.items())
    }


def _draw(
    data: PreparedData, files: list[tuple[PairFile, int]], count: int, rng: np.random.Generator
) -> list[Example]:
    """Draw from the negatives of one rule, over several files."""
    counts = [sum(map(len, _positions(file.found_by, bit))) for file, bit in files]
    ordinals = np.sort(rng.choice(sum(counts), min(count, sum(counts)), replace=False))
    examples, before = [], 0
    for file, bit in files:
        for positions in _positions(file.found_by, bit):
            here = ordinals[(ordinals >= before) & (ordinals < before + len(positions))] - before
            examples += [_example(data, file, int(at), rng) for at in positions[here]]
            before += len(positions)
    return examples


def _example(data: PreparedData, file: PairFile, at: int, rng: np.random.Generator) -> Example:
    """Return the negative at a position of a file, with one of the positives of its group."""
    group = int(np.searchsorted(file.negatives.offsets, at, side="right")) - 1
    positive = rng.choice(file.positives[group])
    rows = (file.queries[group], positive, file.negatives.values[at])
    query, answer, negative = (data.texts.text(int(row)) for row in rows)
    return Example(file.source, file.task, query, answer, negative)


def _positions(found_by: RuleBits | None, bit: int) -> Iterator[IntArray]:
    """Yield the positions of a rule's negatives, chunk by chunk."""
    if found_by is None:
        return
    for start in range(0, len(found_by), NEGATIVES_PER_CHUNK):
        chunk = found_by[start : start + NEGATIVES_PER_CHUNK]
        yield np.flatnonzero(chunk >> chunk.dtype.type(bit) & chunk.dtype.type(1)) + start
