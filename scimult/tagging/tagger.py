"""The class ``Tagger``: concepts of a vocabulary for papers, with probabilities and evidence.

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
from scimult.tagging.evidence import find_evidence
from scimult.tagging.folder import TAGGER, TaggerState, load_state, save_state
from scimult.tagging.fusion import ZERO_SHOT_FUSION
from scimult.tagging.incoming import TagReader, tagged_papers
from scimult.tagging.sets import Hierarchy, best_first, raised, select_tags
from scimult.tagging.signals import Signals
from scimult.tagging.training import LISTED, Fitting, TaggedPapers, blocks, enough
from scimult.tagging.vocabulary import Vocabulary
from scimult.types import BoolArray, FloatArray, Text

_UNCALIBRATED = Calibration(Curve([], []), Curve([], []))


@dataclass(frozen=True)
class SuggestedTag:
    """A concept that fits a paper.

    Attributes
    ----------
    id, label : str
        The concept's.
    score : float
        Probability that a person would give it; without tagged papers to learn from, a number
        from 0 to 1 that only orders.
    evidence : str
        The sentence that speaks for it; empty if it was not asked for.
    """

    id: str
    label: str
    score: float
    evidence: str = ""


class Tagger:
    """Tags papers with concepts of a vocabulary; :meth:`train` makes one, :meth:`open` reads it.

    Parameters
    ----------
    state : TaggerState
        What it knows.
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
        seed: int = 0,
        show_progress: bool = False,
    ) -> Tagger:
        """Train a tagger, write its folder, and return it.

        Parameters
        ----------
        path : path
            The folder: new, empty, or another tagger, which is replaced.
        vocabulary : Vocabulary
            The concepts; see :func:`scimult.tagging.read_vocabulary`.
        papers : iterable of mapping
            Tagged papers: ``id``, ``title``, ``abstract`` and ``labels``, ids or names of concepts.
            Without any, names and embeddings of the concepts decide, and scores are no
            probabilities.
        model : path or SciMult
            The encoder.
        task : str
            One that ranks labels for papers.
        hierarchy : {"flat", "closed", "specific"}
            ``flat``: every concept by itself. ``closed``: a paper has all concepts above those it
            has, so no concept is less probable than one below it. ``specific``: so learned, but
            concepts above another suggested one are left out.
        drop_unknown : bool
            Leave out tags that the vocabulary does not know, in place of an error.
        device, dtype, settings
            As of ``SciMult.from_pretrained``; settings are ``pooling``, ``similarity`` and others.
        vectors : array, optional
            Embeddings of the papers for the task, in their order, if they are at hand.
        store : path, optional
            Folder where embeddings are kept as they are made; a call after a kill goes on there.
        seed : int
            Of what is drawn.
        show_progress : bool
            Show bars.

        Raises
        ------
        DataError
            If a paper is bad, a tag is unknown, or there are some papers but fewer than 50.
        ConfigError
            If the task does not rank labels for papers.
        StorageError
            If something else is in the folder.
        """
        check_replaceable(path, TAGGER)
        one_of("hierarchy", hierarchy, get_args(Hierarchy))
        given = {} if isinstance(model, SciMult) else dict(settings or {})
        encoder = _opened(model, device, dtype, given)
        encoder.tasks.check_labels(task)
        reader = TagReader(vocabulary, closed=hierarchy != "flat", drop_unknown=drop_unknown)
        ids, texts, tags_NC = tagged_papers(papers, reader)
        if ids:
            enough(ids)
        labels = [concept.text for concept in vocabulary]
        labels_CD = encoder.encode(labels, task=task, role="candidate", show_progress=show_progress)
        if vectors is None:
            by = (
                encoder
                if store is None
                else StoringEncoder(encoder, Path(store), encoder.fingerprint)
            )
            vectors = by.encode(texts, task=task, role="query", show_progress=show_progress)
        named = {} if isinstance(model, SciMult) else {"path": str(Path(model).absolute())}
        known = {**named, "dtype": encoder.dtype, "settings": given, "task": task,
                 "fingerprint": encoder.fingerprint}  # fmt: skip
        common = vocabulary, labels_CD
        if not ids:
            mean_C = np.zeros(len(labels), dtype=np.float32)
            state = TaggerState(*common, mean_C, ZERO_SHOT_FUSION, hierarchy, known)
        else:
            tagged = TaggedPapers(ids, texts, vectors, tags_NC)
            fitting = Fitting(*common, encoder.similarity, hierarchy, seed, show_progress)
            state = fitting.state(tagged, known)
        with atomic_folder(path, TAGGER) as temporary:
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
            The encoder, if it does not lie where it lay at the training.
        device : str, optional
            Where texts are encoded.

        Raises
        ------
        DataError
            If the folder is no tagger, or the model is not the one it was trained with.
        """
        state = load_state(Path(path))
        reference = state.model
        wanted = model if model is not None else reference.get("path")
        if wanted is None:
            raise DataError("the tagger's model has no folder", path=path, fix="give it by model")
        encoder = _opened(wanted, device, reference["dtype"], reference["settings"])
        if encoder.fingerprint != reference["fingerprint"]:
            fix = "name the model that it was trained with, or train it again with this one"
            problem = f"tagger was trained with another model than {encoder.name!r}"
            raise DataError(problem, path=path, value=encoder.fingerprint, fix=fix)
        return cls(state, encoder)

    def __repr__(self) -> str:
        facts = self.facts
        learned = f"{facts['papers']:,} tagged papers" if self.is_calibrated else "no tagged papers"
        return f"Tagger({len(self.vocabulary):,} concepts, {learned}, by {self.model.name!r})"

    @property
    def vocabulary(self) -> Vocabulary:
        """Its concepts."""
        return self._state.vocabulary

    @property
    def facts(self) -> dict[str, Any]:
        """How many papers it learned from, and how well it is calibrated."""
        return self._state.facts

    @property
    def task(self) -> str:
        """Task of the model that texts are encoded for."""
        return str(self._state.model["task"])

    @property
    def hierarchy(self) -> Hierarchy:
        """What sets of concepts it was trained for."""
        return self._state.hierarchy

    @property
    def seen_C(self) -> BoolArray:
        """Which concepts have tagged papers that it learned from, in the vocabulary's order."""
        return self._signals.seen_C

    @property
    def is_calibrated(self) -> bool:
        """Whether scores are probabilities: there were tagged papers."""
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
            With ``title`` and ``abstract``; as of ``SciMult.encode``.
        k : int or None
            Concepts of a paper at most; None: all above the threshold, 50 at most.
        threshold : float, optional
            Least score.
        precision : float, optional
            In place of a threshold: the lowest at which the share of right suggestions, for papers
            like those of the training, is surely so high (one-sided, 95 %).
        exclude : iterable of str
            Ids or names of concepts that are never suggested.
        evidence : bool
            Find the sentence that speaks for each; costs as much again as encoding the papers.
        hierarchy : {"flat", "closed", "specific"}, optional
            Other than at the training: ``specific`` for a closed tagger, and the other way round.
        vectors : array, optional
            Embeddings of the papers for the tagger's task, if they are at hand.
        show_progress : bool
            Show bars.

        Raises
        ------
        ConfigError
            If threshold and precision are both given, no threshold has the precision, or there is
            nothing to know the precision from.
        DataError
            If an excluded concept is not in the vocabulary, or a paper is bad.
        """
        how = self._hierarchy(hierarchy)
        threshold = self._threshold(k, threshold, precision)
        excluded = {self.vocabulary.row(name) for name in exclude}
        texts, task = as_texts(papers, "paper"), self.task
        if vectors is None:
            vectors = self.model.encode(texts, task=task, role="query", show_progress=show_progress)
        by_paper: list[list[tuple[int, float]]] = []
        most = max(LISTED, 4 * (k or 0)) + len(excluded)
        for rows in blocks(len(texts), len(self.vocabulary), "tagging", show_progress):
            some = [texts[row] for row in rows.tolist()]
            scores_BC = self.scores(some, vectors[rows])
            for scores_C in scores_BC:
                ranked = best_first(scores_C, self.vocabulary, most)
                best = select_tags(
                    ranked[:most], scores_C, self.vocabulary, k=k if k is not None else LISTED,
                    threshold=threshold, exclude=excluded, hierarchy=how,
                )  # fmt: skip
                by_paper.append([(row, float(scores_C[row])) for row in best])
        rows_of = [[row for row, _ in tags] for tags in by_paper]
        spoken: Sequence[Mapping[int, str]] = [{}] * len(by_paper)
        if evidence:
            place = self.model, task, self.vocabulary, self._state.labels_CD
            spoken = find_evidence(*place, texts, rows_of)
        return [
            [self._suggested(row, score, said) for row, score in tags]
            for tags, said in zip(by_paper, spoken, strict=True)
        ]

    def scores(self, texts: Sequence[Text], vectors_BD: FloatArray) -> Numbers:
        """Return the score of every concept for papers, shape ``(B, C)``, float64."""
        state = self._state
        seen_C = self._signals.seen_C
        logits_BC = state.fusion.logits(self._signals.of(texts, vectors_BD), seen_C)
        if state.hierarchy != "flat":
            logits_BC = raised(logits_BC, state.vocabulary)
        calibration = state.calibration or _UNCALIBRATED
        scores_BC = calibration.probabilities(logits_BC, seen_C)
        if state.hierarchy != "flat":
            # Two curves: what is seen and what is not may have changed places.
            scores_BC = raised(scores_BC, state.vocabulary)
        return scores_BC

    @cached_property
    def _signals(self) -> Signals:
        state = self._state
        return Signals(
            state.vocabulary, state.labels_CD, state.mean_C, self.model.similarity, state.learned
        )

    def _suggested(self, row: int, score: float, said: Mapping[int, str]) -> SuggestedTag:
        concept = self.vocabulary[row]
        return SuggestedTag(concept.id, concept.label, score, said.get(row, ""))

    def _hierarchy(self, asked: Hierarchy | None) -> Hierarchy:
        trained = self._state.hierarchy
        if asked is None:
            return trained
        one_of("hierarchy", asked, get_args(Hierarchy))
        if asked == "closed" and trained == "flat":
            fix = "train it with hierarchy='closed'"
            raise ConfigError("the tagger was trained for a flat vocabulary", value=asked, fix=fix)
        return asked

    def _threshold(
        self, k: int | None, threshold: float | None, precision: float | None
    ) -> float | None:
        if k is not None and k < 1:
            raise ConfigError("no list is as short", value=k, fix="ask for one tag or more")
        if precision is None:
            return threshold
        if threshold is not None:
            fix = "leave one of them out"
            raise ConfigError("threshold and precision cannot both be wanted", fix=fix)
        if not 0 < precision < 1:
            fix = "write a share, such as 0.8"
            raise ConfigError("precision is not between 0 and 1", value=precision, fix=fix)
        known = self._state.suggestions
        if known is None:
            fix = "train with tagged papers, or ask for k or a threshold"
            raise ConfigError("nothing is known of the precision", value=precision, fix=fix)
        cutoff = known.threshold(precision, k)
        if cutoff is None:
            most = int(100 * known.greatest_precision(k)) / 100
            less = f"ask for {most} at most, " if most else ""
            fix = f"{less}give more tagged papers, or ask for the best k alone"
            raise ConfigError("no threshold surely has this precision", value=precision, fix=fix)
        return cutoff


def _opened(
    model: Path | str | SciMult, device: str | None, dtype: str, settings: Mapping[str, Any]
) -> SciMult:
    if isinstance(model, SciMult):
        return model
    return SciMult.from_pretrained(model, device=device, dtype=dtype, **settings)
