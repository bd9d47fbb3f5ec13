"""Papers as weighted words, and a linear model on them for each concept with papers.

Shape legend: N papers, T terms, C concepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scimult.arrays import load_array, load_arrays, save_array, save_arrays
from scimult.files import read_json, write_json
from scimult.progress import progress
from scimult.types import FloatArray, Text

Sparse = Any
"""A ``scipy.sparse.csr_array`` of float32."""

_MOST_TERMS = 100_000
_OTHERS = 1000
"""Most negatives of a concept's model: near papers, and as many others."""
_INVERSE_PENALTY = 10.0
_SMALLEST = 0.05
"""Smaller weights are dropped to keep models small (Babbar and Schölkopf 2017)."""


def packed(rows: Sparse, prefix: str = "") -> dict[str, Any]:
    """Return the parts of a sparse array by name."""
    parts = {f"{prefix}{part}": getattr(rows, part) for part in ("indptr", "indices", "data")}
    return {f"{prefix}shape": np.array(rows.shape), **parts}


def unpacked(arrays: Mapping[str, Any], prefix: str = "") -> Sparse:
    """Return the sparse array from the parts of `packed`."""
    import scipy.sparse as sparse

    parts = tuple(arrays[f"{prefix}{part}"] for part in ("data", "indices", "indptr"))
    return sparse.csr_array(parts, shape=tuple(arrays[f"{prefix}shape"].tolist()))


class Words:
    """Sublinear tf-idf of words and bigrams, in unit rows; titles count twice."""

    def __init__(self, terms: Sequence[str], idf_T: FloatArray) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._terms, self._idf_T = list(terms), idf_T
        self._vectorizer = TfidfVectorizer(vocabulary=self._terms, **_OPTIONS)
        self._vectorizer.idf_ = idf_T

    @classmethod
    def of(cls, texts: Sequence[Text]) -> Words:
        """Learn the 100,000 most frequent terms that occur in at least two papers."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        least = min(2, len(texts))
        fitted = TfidfVectorizer(min_df=least, max_features=_MOST_TERMS, **_OPTIONS)
        try:
            fitted.fit(map(_joined, texts))
        except ValueError:
            # No two papers share a term, as in languages without spaces: one that none has.
            return cls([" "], np.ones(1, dtype=np.float32))
        return cls(fitted.get_feature_names_out().tolist(), fitted.idf_.astype(np.float32))

    def rows(self, texts: Sequence[Text]) -> Sparse:
        """Return the weighted words of papers, shape ``(N, T)``."""
        import scipy.sparse as sparse

        return sparse.csr_array(self._vectorizer.transform(map(_joined, texts)))

    def save(self, folder: Path) -> None:
        """Write ``terms.json`` and ``idf.npy``."""
        write_json(folder / "terms.json", self._terms)
        save_array(folder / "idf.npy", self._idf_T)

    @classmethod
    def load(cls, folder: Path) -> Words:
        """Read the files of `save`."""
        return cls(read_json(folder / "terms.json"), load_array(folder / "idf.npy"))


_OPTIONS: dict[str, Any] = {
    "sublinear_tf": True,
    "ngram_range": (1, 2),
    "stop_words": "english",
    "dtype": np.float32,
}


@dataclass(frozen=True)
class LinearHead:
    """A logistic regression per concept.

    Attributes
    ----------
    weights_TC : sparse array
        Weights of terms.
    bias_C : array
        Log odds of a paper without terms; 0 for concepts without papers.
    """

    weights_TC: Sparse
    bias_C: FloatArray

    def logits(self, words_NT: Sparse) -> FloatArray:
        """Return log odds of each concept, shape ``(N, C)``."""
        logits_NC: FloatArray = (words_NT @ self.weights_TC).toarray()
        return logits_NC + self.bias_C

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file."""
        save_arrays(path, bias=self.bias_C, **packed(self.weights_TC))

    @classmethod
    def load(cls, path: Path) -> LinearHead:
        """Read the file of `save`."""
        arrays = load_arrays(path)
        return cls(unpacked(arrays), arrays["bias"])


def fit_linear(
    words_NT: Sparse, tags_NC: Sparse, near_NC: Sparse, *, seed: int, show_progress: bool = False
) -> LinearHead:
    """Fit a logistic regression for each concept with papers.

    A concept's negatives are a sample of 1,000 papers near those that have it and of 1,000 others,
    the latter weighted to represent all: log odds are those of a fit to all papers. ``near_NC`` is
    non-zero where a neighbour of the paper has the concept.
    """
    import scipy.sparse as sparse

    tags, near = sparse.csc_array(tags_NC), sparse.csc_array(near_NC)
    bias_C = np.zeros(tags.shape[1], dtype=np.float32)
    seen = np.flatnonzero(np.diff(tags.indptr))
    columns: list[tuple[Any, FloatArray]] = []
    for concept in progress(seen.tolist(), "linear", total=len(seen), show=show_progress):
        positives = tags.indices[tags.indptr[concept] : tags.indptr[concept + 1]]
        close = near.indices[near.indptr[concept] : near.indptr[concept + 1]]
        rows, right, weight = _sample(positives, close, tags.shape[0], (seed, concept))
        weights_T, bias_C[concept] = _fit(words_NT[rows], right, weight)
        indices = np.flatnonzero(np.abs(weights_T) >= _SMALLEST)
        columns.append((indices, weights_T[indices]))
    terms = np.concatenate([indices for indices, _ in columns])
    values = np.concatenate([weights for _, weights in columns]).astype(np.float32)
    owners = np.repeat(seen, [len(indices) for indices, _ in columns])
    shape = (words_NT.shape[1], tags.shape[1])
    return LinearHead(sparse.csr_array((values, (terms, owners)), shape=shape), bias_C)


def _sample(
    positives: Any, close: Any, count: int, seed: tuple[int, int]
) -> tuple[Any, FloatArray, FloatArray]:
    """Return rows of papers, whether they have the concept, and their weights."""
    is_free = np.ones(count, dtype=bool)
    is_free[positives] = False
    rng = np.random.default_rng(seed)
    hard = _subset(rng, close[is_free[close]])
    is_free[hard] = False
    others = np.flatnonzero(is_free)
    negatives = _subset(rng, others)
    rows = np.concatenate([positives, hard, negatives])
    right = np.zeros(len(rows), dtype=np.float32)
    right[: len(positives)] = 1
    weight = np.ones(len(rows), dtype=np.float32)
    weight[len(positives) + len(hard) :] = len(others) / max(1, len(negatives))
    return rows, right, weight


def _subset(rng: np.random.Generator, rows: Any) -> Any:
    return rows if len(rows) <= _OTHERS else rng.choice(rows, _OTHERS, replace=False)


def _fit(words_NT: Sparse, right_N: FloatArray, weight_N: FloatArray) -> tuple[FloatArray, float]:
    import scipy.sparse as sparse
    from sklearn.linear_model import LogisticRegression

    if right_N.all():
        return np.zeros(words_NT.shape[1], dtype=np.float32), log_odds_of_all(len(right_N))
    # Only terms that occur, as the solver keeps a number for every column.
    occurs_T = np.zeros(words_NT.shape[1], dtype=bool)
    occurs_T[words_NT.indices] = True
    columns, column_T = np.flatnonzero(occurs_T), np.cumsum(occurs_T, dtype=np.int32) - 1
    shape = (words_NT.shape[0], max(1, len(columns)))
    parts = (words_NT.data, column_T[words_NT.indices], words_NT.indptr.astype(np.int32))
    packed = sparse.csr_array(parts, shape=shape)
    model = LogisticRegression(C=_INVERSE_PENALTY, solver="liblinear", tol=0.05, max_iter=50)
    model.fit(packed, right_N, sample_weight=weight_N)
    weights_T = np.zeros(words_NT.shape[1], dtype=np.float32)
    weights_T[columns] = model.coef_[0][: len(columns)]
    return weights_T, float(model.intercept_[0])


def log_odds_of_all(count: int) -> float:
    """Return the log odds of what was right ``count`` times and never wrong, half counts added."""
    return float(np.log(2 * count + 1))


def _joined(text: Text) -> str:
    return f"{text.title} {text.title} {text.body}"
