"""Statistics for a data card: text lengths, languages and label frequencies.

Shape legend: N texts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from scimult.data.prepared import PreparedData
from scimult.data.text_store import KINDS, TextStore, open_arrow
from scimult.preparation.metadata import FILE_NAME as METADATA_FILE
from scimult.preparation.metadata import VERSION as METADATA_VERSION
from scimult.types import IntArray, Kind

QUANTILES = (0.05, 0.5, 0.95, 1.0)
# Language identification is unreliable for shorter texts.
MIN_WORDS_FOR_LANGUAGE = 20


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


def text_statistics(store: TextStore, sample: int, seed: int = 0) -> TextStatistics:
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
    rng = np.random.default_rng(seed)
    papers = rng.choice(long_papers, min(sample, len(long_papers)), replace=False)
    return TextStatistics(
        {kind: lengths_N[kinds_N == code] for code, kind in enumerate(KINDS)},
        {kind: without[kind] for kind in KINDS},
        _languages(store, np.sort(papers)),
    )


def label_frequencies(data: PreparedData) -> dict[str, IntArray]:
    """Return the number of papers that carry each label, by namespace."""
    table = open_arrow(data.folder / METADATA_FILE, "metadata", METADATA_VERSION)
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
