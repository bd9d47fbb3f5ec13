"""Training: tagged papers are split for learning, for weighing sources and for calibration.

Shape legend: N papers, B papers of a block, C concepts, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.data.ragged import rank_in_runs
from scimult.errors import DataError
from scimult.progress import progress
from scimult.tagging.calibration import (
    Calibration,
    Curve,
    Numbers,
    Suggestions,
    expected_calibration_error,
)
from scimult.tagging.folder import TaggerState
from scimult.tagging.fusion import Fusion, FusionSample
from scimult.tagging.incoming import Hashes, text_hashes
from scimult.tagging.neighbours import NearVectors, shares
from scimult.tagging.sets import Hierarchy, best_first, calibrated, raised
from scimult.tagging.signals import Learned, Signals, similarities
from scimult.tagging.vocabulary import Vocabulary
from scimult.tagging.words import Words, fit_linear
from scimult.terminal import counted
from scimult.types import BoolArray, FloatArray, IntArray, Similarity, Text

LEAST_PAPERS = 50
LISTED = 50
"""Suggestions per paper used for calibration."""
MEASURED = 10
"""Suggestions per paper whose calibration error is reported; the many below are wrong for sure."""
_DEV_SHARE, _MOST_DEV = 0.2, 4000
_MOST_COPIES = 10
"""A text of more papers is no repeated paper but one that new papers have, such as "Editorial"."""
_NUMBERS = 1 << 22
_MEAN_OF = 2000


@dataclass(frozen=True)
class TaggedPapers:
    """Papers with their embeddings and concepts."""

    ids: Sequence[str]
    texts: Sequence[Text]
    vectors_ND: FloatArray
    tags_NC: Any

    def part(self, rows: IntArray) -> TaggedPapers:
        """Return the papers at some rows."""
        texts = [self.texts[row] for row in rows.tolist()]
        ids = [self.ids[row] for row in rows.tolist()]
        return TaggedPapers(ids, texts, self.vectors_ND[rows], self.tags_NC[rows])


def works_of(texts_N: Hashes) -> IntArray:
    """Return the number of each paper's work, which is also that of its copies."""
    _, work_N, counts = np.unique(texts_N, return_inverse=True, return_counts=True)
    own_N = len(counts) + np.arange(len(texts_N))
    works_N: IntArray = np.where(counts[work_N] > _MOST_COPIES, own_N, work_N)
    return np.unique(works_N, return_inverse=True)[1]


def split_papers(ids: Sequence[str], work_N: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the rows for learning, for weighing sources and for calibration.

    A fifth of the papers, at most 4,000, is held out from learning and halved. Copies stay
    together, but for those at a cut: tags of a held-out paper whose copy was learned from are no
    measure of those of new papers. The split does not depend on the order of papers.
    """
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in ids]
    place_N = np.argsort(np.argsort(digests, kind="stable"))
    first = np.full(len(ids), len(ids))
    np.minimum.at(first, work_N, place_N)
    order = np.lexsort((place_N, first[work_N]))
    dev_papers = min(_MOST_DEV, int(_DEV_SHARE * len(ids)))
    return (
        np.sort(order[dev_papers:]),
        np.sort(order[: dev_papers // 2]),
        np.sort(order[dev_papers // 2 : dev_papers]),
    )


def fit_tagger(
    papers: TaggedPapers,
    vocabulary: Vocabulary,
    labels_CD: FloatArray,
    similarity: Similarity,
    hierarchy: Hierarchy,
    model: dict[str, Any],
    *,
    seed: int = 0,
    show_progress: bool = False,
) -> TaggerState:
    """Fit a tagger to papers and concepts encoded by ``model``; return its state.

    Raises
    ------
    DataError
        If only held-out papers have tags.
    """
    hashes_N = text_hashes(papers.texts)
    work_N = works_of(hashes_N)
    split = split_papers(papers.ids, work_N)
    learning, weighing, calibrating = [papers.part(rows) for rows in split]
    if not learning.tags_NC.nnz:
        problem, fix = "no paper to learn from has a tag", "tag more papers"
        raise DataError(problem, value=counted(len(learning.ids), "paper"), fix=fix)
    sample_ND = learning.vectors_ND[:_MEAN_OF]
    mean_C = similarities(sample_ND, labels_CD, similarity).mean(axis=0)
    learned = learn(learning, similarity, seed=seed, show_progress=show_progress)
    signals = Signals(vocabulary, labels_CD, mean_C, similarity, learned)
    fusion = weigh(signals, weighing, seed=seed, show_progress=show_progress)
    calibration, suggestions, error = calibrate(
        signals,
        fusion,
        calibrating,
        work_N[split[2]],
        vocabulary,
        hierarchy,
        show_progress=show_progress,
    )
    facts = {
        "papers": len(papers.ids),
        "papers_by_use": [len(part.ids) for part in (learning, weighing, calibrating)],
        "concepts": len(vocabulary),
        "concepts_with_papers": int(signals.seen_C.sum()),
        "expected_calibration_error": round(error, 5),
    }
    return TaggerState(
        vocabulary, labels_CD, mean_C, fusion, hierarchy, model,
        learned=learned, calibration=calibration, suggestions=suggestions, facts=facts,
        texts=hashes_N,
    )  # fmt: skip


def learn(
    papers: TaggedPapers, similarity: Similarity, *, seed: int, show_progress: bool
) -> Learned:
    """Learn neighbours, words and a linear model per concept from papers."""
    words = Words.of(papers.texts)
    words_NT = words.rows(papers.texts)
    own_N = np.arange(len(papers.ids))
    rows_NK, scores_NK = NearVectors(papers.vectors_ND, similarity).search(
        papers.vectors_ND, own_B=own_N
    )
    near_NC = shares(rows_NK, scores_NK, papers.tags_NC)
    linear = fit_linear(words_NT, papers.tags_NC, near_NC, seed=seed, show_progress=show_progress)
    return Learned(papers.tags_NC, papers.vectors_ND, words, words_NT, linear)


def weigh(
    signals: Signals, papers: TaggedPapers, *, seed: int, show_progress: bool = False
) -> Fusion:
    """Fit the weights of the sources to papers held out from learning."""
    sample = FusionSample(signals.seen_C, seed)
    for rows in blocks(len(papers.ids), len(signals.seen_C), "weighing", show_progress):
        block = papers.part(rows)
        signals_SBC = signals.of(block.texts, block.vectors_ND)
        sample.add(signals_SBC, block.tags_NC.toarray() > 0)
    return sample.fit()


def calibrate(
    signals: Signals,
    fusion: Fusion,
    papers: TaggedPapers,
    work_N: IntArray,
    vocabulary: Vocabulary,
    hierarchy: Hierarchy,
    *,
    show_progress: bool = False,
) -> tuple[Calibration, Suggestions, float]:
    """Fit curves to papers held out from learning and weighing; return them with suggestions.

    Papers with one number in ``work_N`` are copies. The float is the expected calibration error of
    the best 10 suggestions, each half of the works by curves fitted to the other.
    """
    seen_C = signals.seen_C
    listed = partial(_listed, signals, fusion, papers, vocabulary, show_progress)
    papers_P, concepts_P, logits_P, right_P = listed(
        lambda logits_BC: logits_BC if hierarchy == "flat" else raised(logits_BC, vocabulary)
    )
    works_N = np.unique(work_N, return_inverse=True)[1]
    seen_P, half_P = seen_C[concepts_P], works_N[papers_P] % 2 == 0
    held_out_P = np.empty(len(logits_P))
    for fitted_P in (half_P, ~half_P):
        curves = _curves(logits_P[fitted_P], right_P[fitted_P], seen_P[fitted_P])
        held_out_P[~fitted_P] = curves.probabilities(logits_P[~fitted_P], seen_P[~fitted_P])
    best_P = _ranks(held_out_P, papers_P) <= MEASURED
    error = expected_calibration_error(held_out_P[best_P], right_P[best_P])
    calibration = _curves(logits_P, right_P, seen_P)
    # By probability, as in tagging: log odds of seen and unseen concepts are not comparable.
    papers_P, concepts_P, probabilities_P, right_P = listed(
        lambda logits_BC: calibrated(logits_BC, seen_C, calibration, vocabulary, hierarchy)
    )
    ranks_P, works_P = rank_in_runs(papers_P) + 1, works_N[papers_P]
    suggestions = Suggestions(
        probabilities_P, right_P, papers_P, ranks_P, concepts_P, works_P=works_P
    )
    return calibration, suggestions, error


def _listed(
    signals: Signals,
    fusion: Fusion,
    papers: TaggedPapers,
    vocabulary: Vocabulary,
    show_progress: bool,
    score: Callable[[FloatArray], NDArray[Any]],
) -> tuple[IntArray, IntArray, NDArray[Any], BoolArray]:
    """Return the best 50 concepts of each paper by a score of their log odds, best first.

    These are the papers, the concepts, their scores, and whether they are right.
    """
    parts = []
    for rows in blocks(len(papers.ids), len(vocabulary), "calibrating", show_progress):
        block = papers.part(rows)
        signals_SBC = signals.of(block.texts, block.vectors_ND)
        scores_BC = score(fusion.logits(signals_SBC, signals.seen_C))
        tags_BC = block.tags_NC.toarray() > 0
        for row, paper in enumerate(rows.tolist()):
            concepts = np.array(best_first(scores_BC[row], vocabulary, LISTED)[:LISTED])
            owners = np.full(len(concepts), paper)
            parts.append((owners, concepts, scores_BC[row, concepts], tags_BC[row, concepts]))
    papers_P, concepts_P, scores_P, right_P = (np.concatenate(x) for x in zip(*parts, strict=True))
    return papers_P, concepts_P, scores_P, right_P


def _ranks(probabilities_P: Numbers, papers_P: IntArray) -> IntArray:
    """Return the place of each concept, from 1, in the list of its paper."""
    order = np.lexsort((-probabilities_P, papers_P))
    ranks_P = np.empty_like(order)
    ranks_P[order] = rank_in_runs(papers_P[order]) + 1
    return ranks_P


def _curves(logits_P: FloatArray, right_P: BoolArray, seen_P: BoolArray) -> Calibration:
    return Calibration(
        *(Curve.fit(logits_P[group_P], right_P[group_P]) for group_P in (seen_P, ~seen_P))
    )


def blocks(papers: int, concepts: int, title: str, show: bool) -> Iterator[IntArray]:
    """Yield blocks of paper rows whose scores for all concepts fit into memory."""
    size = max(1, _NUMBERS // concepts)
    starts = range(0, papers, size)
    for start in progress(starts, title, total=len(starts), unit="block", show=show):
        yield np.arange(start, min(start + size, papers))
