"""The class ``Tagger``: tags papers from a vocabulary, with probabilities and evidence.

Shape legend: N papers, B papers of a block, C concepts, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scimult.errors import ConfigError, DataError, one_of
from scimult.files import atomic_folder, check_replaceable
from scimult.inference import SciMult
from scimult.inference.texts import Texts, as_texts
from scimult.retrieval.store import StoringEncoder
from scimult.tagging.calibration import Calibration, Curve, Numbers
from scimult.tagging.encoder import checked_vectors, opened, reference_of
from scimult.tagging.evidence import find_evidence
from scimult.tagging.folder import TAGGER, TaggerState, load_state, save_state
from scimult.tagging.fusion import ZERO_SHOT_FUSION
from scimult.tagging.incoming import tagged_papers, text_hashes
from scimult.tagging.sets import (
    Hierarchy,
    as_selected,
    best_first,
    calibrated,
    check_limits,
    select_tags,
)
from scimult.tagging.signals import Signals
from scimult.tagging.training import LEAST_PAPERS, LISTED, TaggedPapers, blocks, fit_tagger
from scimult.tagging.vocabulary import Vocabulary
from scimult.terminal import counted
from scimult.types import BoolArray, FloatArray, Similarity, Text

_UNCALIBRATED = Calibration(Curve([], []), Curve([], []))


@dataclass(frozen=True)
class SuggestedTag:
    """A concept suggested for a paper.

    Attributes
    ----------
    id, label : str
        Id and label of the concept.
    score : float
        Probability that a person would assign it; without tagged papers, a number from 0 to 1
        for ranking only.
    evidence : str
        The sentence that supports it; empty if not requested.
    """

    id: str
    label: str
    score: float
    evidence: str = ""


class Tagger:
    """Tags papers with concepts of a vocabulary; see `train` and `open`.

    Parameters
    ----------
    state : TaggerState
        Data of the trained tagger.
    model : SciMult
        The encoder that it was trained with.
    """

    def __init__(self, state: TaggerState, model: SciMult) -> None:
        self._state, self.model = state, model

    @classmethod
    def train(
        cls,
        path: Path | str,
        vocabulary: Vocabulary,
        papers: Iterable[Mapping[str, Any]] = (),
        *,
        model: Path | str | SciMult,
        task: str = "classification",
        hierarchy: Hierarchy = "flat",
        drop_unknown: bool = False,
        device: str | None = None,
        dtype: str = "auto",
        settings: Mapping[str, Any] | None = None,
        vectors: FloatArray | None = None,
        store: Path | str | None = None,
        overwrite: bool = True,
        seed: int = 0,
        show_progress: bool = False,
    ) -> Tagger:
        """Train a tagger, write its folder, and return it.

        Parameters
        ----------
        path : path
            The folder: new, empty, or with ``overwrite`` another tagger, which is replaced.
        vocabulary : Vocabulary
            The concepts; see `scimult.tagging.read_vocabulary`.
        papers : iterable of mapping
            Tagged papers: ``id``, ``title``, ``abstract`` and ``labels``, ids or names of concepts.
            Without any, only names and embeddings of the concepts are used, and scores are not
            probabilities.
        model : path or SciMult
            The encoder.
        task : str
            A task that ranks labels for papers.
        hierarchy : {"flat", "closed", "specific"}
            ``flat``: every concept by itself. ``closed``: a paper has all concepts above its own,
            so no concept is less probable than one below it. ``specific``: learned like
            ``closed``, but concepts above another suggestion are left out.
        drop_unknown : bool
            Ignore tags that are not in the vocabulary, instead of raising an error.
        device, dtype, settings
            As for ``SciMult.from_pretrained``; settings are ``pooling``, ``similarity`` and others.
        vectors : array, optional
            Embeddings of the papers for the task, in their order, if available.
        store : path, optional
            Folder to keep embeddings in, so that another call after a kill resumes.
        seed : int
            Seed of all sampling.
        show_progress : bool
            Show progress bars.

        Raises
        ------
        DataError
            If a paper is invalid, a tag is unknown, there are some papers but fewer than 50, or
            ``vectors`` are not theirs.
        ConfigError
            If the task does not rank labels for papers.
        StorageError
            If the folder holds something else.
        """
        given: object = vocabulary
        if not isinstance(given, Vocabulary):
            problem = f"vocabulary is of type {type(given).__name__}"
            raise DataError(problem, fix="pass read_vocabulary(FILE), or Vocabulary(NAMES)")
        replaceable = TAGGER if overwrite else None
        check_replaceable(path, replaceable)
        one_of("hierarchy", hierarchy, get_args(Hierarchy))
        overrides = {} if isinstance(model, SciMult) else dict(settings or {})
        encoder = opened(model, device, dtype, overrides)
        encoder.tasks.check_labels(task)
        ids, texts, tags_NC = tagged_papers(
            papers, vocabulary, closed=hierarchy != "flat", drop_unknown=drop_unknown
        )
        if 0 < len(ids) < LEAST_PAPERS:
            fix = f"give {LEAST_PAPERS} or more, or none for a tagger that only matches labels"
            raise DataError("too few tagged papers to learn from", value=len(ids), fix=fix)
        labels = [concept.text for concept in vocabulary]
        labels_CD = encoder.encode(labels, task=task, role="candidate", show_progress=show_progress)
        labels_CD = checked_vectors(labels_CD, len(labels), encoder.width, encoder.similarity)
        if vectors is None:
            storing = (
                encoder
                if store is None
                else StoringEncoder(encoder, Path(store), encoder.fingerprint)
            )
            vectors = storing.encode(texts, task=task, role="query", show_progress=show_progress)
        vectors = checked_vectors(vectors, len(texts), encoder.width, encoder.similarity)
        reference = reference_of(encoder, model, overrides, task)
        common = vocabulary, labels_CD
        if not ids:
            mean_C = np.zeros(len(labels), dtype=np.float32)
            state = TaggerState(*common, mean_C, ZERO_SHOT_FUSION, hierarchy, reference)
        else:
            state = fit_tagger(
                TaggedPapers(ids, texts, vectors, tags_NC), *common, encoder.similarity, hierarchy,
                reference, seed=seed, show_progress=show_progress,
            )  # fmt: skip
        with atomic_folder(path, replaceable) as temporary:
            save_state(temporary, state)
        return cls(state, encoder)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        model: Path | str | SciMult | None = None,
        device: str | None = None,
    ) -> Tagger:
        """Open a tagger's folder.

        Parameters
        ----------
        path : path
            The folder.
        model : path or SciMult, optional
            The encoder, if it has moved since the training.
        device : str, optional
            Device to encode texts on.

        Raises
        ------
        DataError
            If the folder is not a tagger, or the model is not the one it was trained with.
        """
        state = load_state(Path(path))
        reference = state.model
        source = model if model is not None else reference.get("path")
        if source is None:
            fix = "pass model (--model)"
            raise DataError("the tagger's model has no folder", path=path, fix=fix)
        encoder = opened(source, device, reference["dtype"], reference["settings"])
        if encoder.fingerprint != reference["fingerprint"]:
            fix = "use the model that it was trained with, or train it again with this one"
            problem = f"tagger was trained with another model than {encoder.name!r}"
            raise DataError(problem, path=path, value=encoder.fingerprint, fix=fix)
        return cls(state, encoder)

    def __repr__(self) -> str:
        papers = self.facts.get("papers", 0)
        learned = f"{papers:,} tagged papers" if self.is_calibrated else "no tagged papers"
        concepts = counted(len(self.vocabulary), "concept")
        return f"Tagger({concepts}, {learned}, by {self.model.name!r})"

    @property
    def vocabulary(self) -> Vocabulary:
        """The concepts."""
        return self._state.vocabulary

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers of papers and concepts, and the calibration error."""
        return self._state.facts

    def was_trained_on(self, texts: Iterable[Text]) -> BoolArray:
        """Return which texts are among those of its training; none if it is of an old version."""
        return np.isin(text_hashes(texts), self._state.texts)

    @property
    def task(self) -> str:
        """Task of the model that texts are encoded for."""
        return str(self._state.model["task"])

    @property
    def similarity(self) -> Similarity:
        """Similarity of the training; the same model may be opened with another one."""
        stored = self._state.model
        # Taggers of earlier versions stored it only if it was not the model's own.
        known: Similarity | None = stored.get("similarity", stored["settings"].get("similarity"))
        return known or self.model.similarity

    @property
    def hierarchy(self) -> Hierarchy:
        """Hierarchy of the training."""
        return self._state.hierarchy

    @property
    def seen_C(self) -> BoolArray:
        """Which concepts it learned from tagged papers, in the vocabulary's order."""
        return self._signals.seen_C

    @property
    def is_calibrated(self) -> bool:
        """Whether scores are probabilities, because there were tagged papers."""
        return self._state.calibration is not None

    def tag(
        self,
        papers: Texts,
        k: int | None = 5,
        threshold: float | None = None,
        precision: float | None = None,
        exclude: Iterable[str] = (),
        *,
        evidence: bool = True,
        hierarchy: Hierarchy | None = None,
        vectors: FloatArray | None = None,
        show_progress: bool = False,
    ) -> list[list[SuggestedTag]]:
        """Return the concepts of each paper, most probable first.

        Parameters
        ----------
        papers : iterable of mapping or str
            With ``title`` and ``abstract``; as for ``SciMult.encode``.
        k : int or None
            Most concepts per paper; None: all above the threshold, at most 50.
        threshold : float, optional
            Lowest score, from 0 to 1.
        precision : float, optional
            Instead of a threshold: use the lowest one that guarantees this share of right
            suggestions on papers like those of the training (one-sided, 95 %).
        exclude : iterable of str
            Ids or names of concepts that are never suggested.
        evidence : bool
            Find the sentence that supports each tag; costs as much again as encoding the papers.
        hierarchy : {"flat", "closed", "specific"}, optional
            Override that of the training: ``specific`` for a closed tagger, or vice versa.
        vectors : array, optional
            Embeddings of the papers for the tagger's task, if available.
        show_progress : bool
            Show progress bars.

        Raises
        ------
        ConfigError
            If threshold or precision are not from 0 to 1 or both are given, no threshold
            guarantees the precision, or there were no tagged papers to estimate it from.
        DataError
            If an excluded concept or a paper is invalid, or ``vectors`` are not theirs.
        """
        hierarchy = self._hierarchy(hierarchy)
        excluded = self.vocabulary.rows(exclude)
        threshold = self._threshold(k, threshold, precision, excluded, hierarchy)
        texts, task = as_texts(papers, "paper"), self.task
        if vectors is None:
            vectors = self.model.encode(texts, task=task, role="query", show_progress=show_progress)
        vectors = checked_vectors(vectors, len(texts), self.model.width, self.similarity)
        by_paper: list[list[tuple[int, float]]] = []
        # A precision is known of the best 50 of a paper, before anything is left out.
        most = LISTED if precision else max(LISTED, 4 * (k or 0)) + len(excluded)
        for rows in blocks(len(texts), len(self.vocabulary), "tagging", show_progress):
            for scores_C in self.scores([texts[row] for row in rows.tolist()], vectors[rows]):
                ranked = best_first(scores_C, self.vocabulary, most)
                best = select_tags(
                    ranked[:most], scores_C, self.vocabulary, k=k if k is not None else LISTED,
                    threshold=threshold, exclude=excluded, hierarchy=hierarchy,
                )  # fmt: skip
                by_paper.append([(row, float(scores_C[row])) for row in best])
        sentences: Sequence[Mapping[int, str]] = [{}] * len(by_paper)
        if evidence:
            tag_rows = [[row for row, _ in tags] for tags in by_paper]
            sentences = find_evidence(
                self.model, task, self.similarity, self.vocabulary, self._state.labels_CD,
                texts, tag_rows,
            )  # fmt: skip
        return [
            [self._suggested(row, score, by_row) for row, score in tags]
            for tags, by_row in zip(by_paper, sentences, strict=True)
        ]

    def scores(self, texts: Sequence[Text], vectors_BD: FloatArray) -> Numbers:
        """Return papers' scores of all concepts, shape ``(B, C)``, float64."""
        state = self._state
        logits_BC = state.fusion.logits(self._signals.of(texts, vectors_BD), self.seen_C)
        calibration = state.calibration or _UNCALIBRATED
        return calibrated(logits_BC, self.seen_C, calibration, state.vocabulary, state.hierarchy)

    @cached_property
    def _signals(self) -> Signals:
        state = self._state
        return Signals(
            state.vocabulary, state.labels_CD, state.mean_C, self.similarity, state.learned
        )

    def _suggested(self, row: int, score: float, sentences: Mapping[int, str]) -> SuggestedTag:
        concept = self.vocabulary[row]
        return SuggestedTag(concept.id, concept.label, score, sentences.get(row, ""))

    def _hierarchy(self, requested: Hierarchy | None) -> Hierarchy:
        if requested is None:
            return self.hierarchy
        one_of("hierarchy", requested, get_args(Hierarchy))
        if requested == "closed" and self.hierarchy == "flat":
            problem, fix = "tagger was trained with a flat hierarchy", "train it with 'closed'"
            raise ConfigError(problem, value=requested, fix=fix)
        return requested

    def _threshold(
        self,
        k: int | None,
        threshold: float | None,
        precision: float | None,
        excluded: set[int],
        hierarchy: Hierarchy,
    ) -> float | None:
        check_limits(k, threshold, precision)
        if precision is None:
            return threshold
        suggestions = self._state.suggestions
        if suggestions is None:
            problem = "without tagged papers the precision is unknown"
            fix = "train with tagged papers, or leave out the precision"
            raise ConfigError(problem, value=precision, fix=fix)
        if self._state.is_outdated:
            problem = "an earlier version measured this tagger's precision, not as it tags now"
            fix = "train the tagger again, or leave out the precision"
            raise ConfigError(problem, value=precision, fix=fix)
        if excluded or hierarchy == "specific":
            suggestions = as_selected(
                suggestions, self.vocabulary, k=k, exclude=excluded, hierarchy=hierarchy
            )
        cutoff = suggestions.threshold(precision, k)
        if cutoff is None:
            greatest = int(100 * suggestions.greatest_precision(k)) / 100
            lower = f"request at most {greatest}, " if greatest else ""
            fix = f"{lower}train with more tagged papers, or leave out the precision"
            raise ConfigError("no threshold guarantees this precision", value=precision, fix=fix)
        return cutoff
