"""Sources of evidence for a concept: one number per paper, concept and source.

Shape legend: S sources, B papers, C concepts, D width, M tagged papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scimult.products import products
from scimult.tagging.names import NameFinder
from scimult.tagging.neighbours import NearVectors, NearWords, shares
from scimult.tagging.vocabulary import Vocabulary
from scimult.tagging.words import LinearHead, Words
from scimult.types import BoolArray, FloatArray, IntArray, Similarity, Text

ZERO_SHOT = ("label", "title", "abstract")
LEARNED = ("near", "near_words", "linear", "papers")
SOURCES = (*ZERO_SHOT, *LEARNED)
"""Sources in the order of the arrays here.

``label``
    Similarity of paper and concept minus the concept's mean over papers, in standard deviations
    over all concepts: a concept close to every paper says nothing about this one.
``title``, ``abstract``
    Whether a name occurs in the title; log(1 + occurrences) for the abstract.
``near``, ``near_words``
    Log of the share of neighbours with the concept, by embedding and by words.
``linear``
    Log odds of the concept's linear model.
``papers``
    Log(1 + tagged papers with the concept).
"""
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Learned:
    """What is learned from tagged papers: their tags, embeddings and words, and linear models."""

    tags_MC: Any
    vectors_MD: FloatArray
    words: Words
    words_MT: Any
    linear: LinearHead

    @cached_property
    def papers_C(self) -> IntArray:
        """Number of tagged papers with each concept."""
        counts: IntArray = np.bincount(self.tags_MC.indices, minlength=self.tags_MC.shape[1])
        return counts


class Signals:
    """Computes the sources of a vocabulary; without ``learned`` there are only the first three.

    ``mean_C`` is each concept's mean similarity to papers.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        labels_CD: FloatArray,
        mean_C: FloatArray,
        similarity: Similarity,
        learned: Learned | None,
    ) -> None:
        self._labels_CD, self._mean_C = labels_CD, mean_C
        self._similarity, self._learned = similarity, learned
        self._finder = NameFinder(concept.names for concept in vocabulary)
        self.seen_C: BoolArray = np.zeros(len(vocabulary), dtype=bool)
        if learned is not None:
            self.seen_C = learned.papers_C > 0

    def of(self, texts: Sequence[Text], vectors_BD: FloatArray) -> FloatArray:
        """Return the sources of each concept, shape ``(S, B, C)``; S is 3 without tagged papers.

        The learned sources of concepts without papers are 0.
        """
        count = len(SOURCES if self._learned is not None else ZERO_SHOT)
        signals_SBC = np.zeros((count, len(texts), len(self._mean_C)), dtype=np.float32)
        similar_BC = similarities(vectors_BD, self._labels_CD, self._similarity) - self._mean_C
        signals_SBC[0] = standardised(similar_BC)
        for row, text in enumerate(texts):
            for concept in self._finder.find(text.title):
                signals_SBC[1, row, concept] = 1
            for concept in self._finder.find(text.body):
                signals_SBC[2, row, concept] += 1
        np.log1p(signals_SBC[2], out=signals_SBC[2])
        if self._learned is not None:
            self._add_learned(signals_SBC, texts, vectors_BD, self._learned)
        return signals_SBC

    def _add_learned(
        self,
        signals_SBC: FloatArray,
        texts: Sequence[Text],
        vectors_BD: FloatArray,
        learned: Learned,
    ) -> None:
        words_BT = learned.words.rows(texts)
        near, near_words = self._neighbours
        neighbours = (near.search(vectors_BD), near_words.search(words_BT))
        for source, (rows_BK, scores_BK) in enumerate(neighbours, start=len(ZERO_SHOT)):
            share_BC = shares(rows_BK, scores_BK, learned.tags_MC).toarray()
            signals_SBC[source] = np.log(share_BC + _LEAST_SHARE)
        signals_SBC[-2] = learned.linear.logits(words_BT)
        signals_SBC[-1] = np.log1p(learned.papers_C)
        signals_SBC[len(ZERO_SHOT) :, :, ~self.seen_C] = 0

    @cached_property
    def _neighbours(self) -> tuple[NearVectors, NearWords]:
        learned = self._learned
        assert learned is not None
        return NearVectors(learned.vectors_MD, self._similarity), NearWords(learned.words_MT)


def similarities(
    queries_BD: FloatArray, candidates_CD: FloatArray, similarity: Similarity
) -> FloatArray:
    """Return similarities of all pairs, shape ``(B, C)``; larger is closer.

    ``cosine`` expects unit vectors; ``l2`` is minus the distance.
    """
    import torch

    if similarity == "l2" and len(candidates_CD):
        # Distances stay, and products lose no digits to what all vectors share.
        mean_D = candidates_CD.mean(axis=0, dtype=np.float64).astype(np.float32)
        queries_BD, candidates_CD = queries_BD - mean_D, candidates_CD - mean_D
    scores_CB = products(torch.from_numpy(candidates_CD), torch.from_numpy(queries_BD)).numpy()
    scores_BC: FloatArray = scores_CB.T
    if similarity == "l2":
        squares = [(x**2).sum(axis=1) for x in (queries_BD, candidates_CD)]
        distances_BC = squares[0][:, None] + squares[1] - 2 * scores_BC
        scores_BC = -np.sqrt(np.maximum(distances_BC, 0))
    return scores_BC


def standardised(values_BC: FloatArray) -> FloatArray:
    """Scale rows to mean 0 and standard deviation 1; constant rows become 0."""
    centred_BC = values_BC - values_BC.mean(axis=1, keepdims=True)
    spread_B1 = centred_BC.std(axis=1, keepdims=True)
    divisors_B1: FloatArray = np.where(spread_B1 > 0, spread_B1, 1)
    scaled_BC: FloatArray = centred_BC / divisors_B1
    return scaled_BC
