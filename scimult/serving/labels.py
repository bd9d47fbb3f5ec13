"""Labels to tag papers with: encoded once, or by a trained tagger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from scimult.errors import DataError, suggest
from scimult.inference import SciMult
from scimult.library.tagging import LabelIndex
from scimult.retrieval.exact import ExactIndex
from scimult.tagging.tagger import SuggestedTag, Tagger
from scimult.types import Text


class Tags(Protocol):
    """Anything that suggests labels for papers."""

    def __len__(self) -> int: ...

    def on(self, model: SciMult) -> Tags:
        """Return the same labels for a library with this model."""
        ...

    def suggest(
        self,
        papers: Sequence[Text],
        *,
        k: int,
        threshold: float | None,
        exclude: Sequence[str],
        evidence: bool = True,
    ) -> list[list[SuggestedTag]]:
        """Return the best ``k`` labels of each paper, best first, with sentences if known."""
        ...


class LabelSpace(LabelIndex):
    """Labels and their embeddings; ``model`` encodes labels now, and papers on request.

    Raises
    ------
    ConfigError
        If the task does not rank labels.
    DataError
        If there are no labels, one has no name, or an id is repeated.
    """

    def __init__(
        self,
        model: SciMult,
        labels: Iterable[str | Mapping[str, Any]],
        task: str = "classification",
    ) -> None:
        self._labels = list(labels)
        super().__init__(model, self._labels, task)
        self._rows = {name: row for row, name in enumerate(self.ids)}

    def on(self, model: SciMult) -> LabelSpace:
        """Return the same labels, encoded by this model."""
        return self if model is self.model else LabelSpace(model, self._labels, self.task)

    @cached_property
    def by_cosine(self) -> LabelSpace:
        """The same labels, compared by cosine whatever the model's similarity."""
        if self.model.similarity == "cosine":
            return self
        other = copy(self)
        other._index = ExactIndex(self.ids, self._labels_CD, "cosine")
        return other

    def suggest(
        self,
        papers: Sequence[Text],
        *,
        k: int,
        threshold: float | None,
        exclude: Sequence[str],
        evidence: bool = True,
    ) -> list[list[SuggestedTag]]:
        """Return the best ``k`` labels of each paper, without sentences.

        Raises
        ------
        DataError
            If an excluded label is unknown.
        """
        unknown = [name for name in exclude if name not in self._rows]
        if unknown:
            fix = f"exclude labels by their ids{suggest(unknown[0], self.ids)}"
            raise DataError("no label has this id", value=unknown[0], fix=fix)
        excluded = {self._rows[name] for name in exclude}
        vectors_ND = self.model.encode(papers, task=self.task, role="query")
        least = -np.inf if threshold is None else threshold
        return [
            [
                SuggestedTag(self.ids[row], self.texts[row].title, score)
                for row, score in best
                if row not in excluded and score >= least
            ][:k]
            for best in self.best(vectors_ND, k + len(excluded))
        ]


class TaggerLabels:
    """Labels of a trained tagger; scores are probabilities if it had tagged papers."""

    def __init__(self, tagger: Tagger) -> None:
        self._tagger = tagger

    def __len__(self) -> int:
        return len(self._tagger.vocabulary)

    def on(self, model: SciMult) -> TaggerLabels:
        """Return itself: a tagger keeps the model of its training."""
        return self

    def suggest(
        self,
        papers: Sequence[Text],
        *,
        k: int,
        threshold: float | None,
        exclude: Sequence[str],
        evidence: bool = True,
    ) -> list[list[SuggestedTag]]:
        """Return the best ``k`` labels of each paper, with the sentence that supports each."""
        return self._tagger.tag(papers, k, threshold, exclude=exclude, evidence=evidence)
