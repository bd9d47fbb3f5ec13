"""Evaluation of a tagger on tagged papers.

Shape legend: Q papers, K suggestions, C concepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError, DataError
from scimult.evaluation.metrics import compute, judge
from scimult.progress import warn
from scimult.retrieval.runs import Qrels, Ranking
from scimult.tagging.calibration import expected_calibration_error
from scimult.tagging.incoming import tagged_papers
from scimult.tagging.sets import check_limits
from scimult.tagging.tagger import SuggestedTag, Tagger
from scimult.tagging.training import MEASURED
from scimult.terminal import counted
from scimult.types import BoolArray, FloatArray

METRICS = ("precision@5", "recall@5", "f1@5", "ndcg@10")


def evaluate_tagger(
    tagger: Tagger,
    papers: Iterable[Mapping[str, Any]],
    *,
    precision: float | None = None,
    drop_unknown: bool = False,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Return metrics over all concepts, those with tagged papers, and those without.

    In each group the tagger ranks only its concepts, over the papers with a tag among them.

    Parameters
    ----------
    tagger : Tagger
        The tagger.
    papers : iterable of mapping
        As for `Tagger.train`, but not used there.
    precision : float, optional
        Target precision; the precision that it yields on these papers is measured. Where no
        threshold guarantees it, there are no tags, and a warning.
    drop_unknown : bool
        Ignore tags that are not in the vocabulary.
    show_progress : bool
        Show progress bars.

    Returns
    -------
    dict
        ``papers``, and ``trained_on``, how many of them the tagger was trained on; ``all``,
        ``seen`` and ``unseen``, each with ``papers`` and the metrics;
        ``expected_calibration_error`` of the top 10; and ``at_precision``.

    Raises
    ------
    DataError
        If no paper has a tag, or one is invalid.
    ConfigError
        If ``precision`` is not from 0 to 1.
    """
    check_limits(None, None, precision)
    closed = tagger.hierarchy != "flat"
    ids, texts, tags_QC = tagged_papers(
        papers, tagger.vocabulary, closed=closed, drop_unknown=drop_unknown
    )
    if not ids:
        raise DataError("no papers to evaluate on", fix="give papers with labels")
    trained_on = int(tagger.was_trained_on(texts).sum())
    if trained_on:
        known = f"the tagger was trained on {trained_on:,} of {counted(len(ids), 'paper')}"
        warn(f"{known}, so the numbers are too high: evaluate it on others")
    reachable = precision is not None and _reaches(tagger, precision)
    vectors = tagger.model.encode(texts, task=tagger.task, show_progress=show_progress)
    options: dict[str, Any] = {"evidence": False, "vectors": vectors}
    gold = [set(rows.tolist()) for rows in np.split(tags_QC.indices, tags_QC.indptr[1:-1])]
    facts: dict[str, Any] = {"papers": len(ids), "trained_on": trained_on}
    names = tagger.vocabulary.ids
    everything = np.ones(len(names), dtype=bool)
    for group, members_C in (
        ("all", everything),
        ("seen", tagger.seen_C),
        ("unseen", ~tagger.seen_C),
    ):
        others = [names[row] for row in np.flatnonzero(~members_C)]
        suggested = tagger.tag(
            texts, k=MEASURED, exclude=others, show_progress=show_progress, **options
        )
        facts[group] = metrics_of(tagger, suggested, gold, members_C)
        if group == "all":
            pairs = _pairs(tagger, suggested, gold)
            facts["expected_calibration_error"] = expected_calibration_error(*pairs)
    if precision is not None:
        suggested = [[] for _ in texts]
        if reachable:
            suggested = tagger.tag(texts, k=None, precision=precision, **options)
        _, right_P = _pairs(tagger, suggested, gold)
        facts["at_precision"] = {
            "wanted": precision,
            "measured": float(right_P.mean()) if len(right_P) else None,
            "tags_per_paper": len(right_P) / len(ids),
            "share_of_gold": float(right_P.sum() / max(1, sum(map(len, gold)))),
        }
    return facts


def metrics_of(
    tagger: Tagger,
    suggestions: Sequence[Sequence[SuggestedTag]],
    gold: Sequence[Collection[int]],
    members_C: BoolArray,
) -> dict[str, float]:
    """Return the metrics of a group of concepts, over papers that have one of them."""
    gold = [sorted(row for row in rows if members_C[row]) for rows in gold]
    tagged = [paper for paper, rows in enumerate(gold) if rows]
    rows_QK = np.full((len(tagged), MEASURED), -1, dtype=np.int64)
    for query, paper in enumerate(tagged):
        rows = [tagger.vocabulary.row(tag.id) for tag in suggestions[paper]]
        rows_QK[query, : len(rows)] = rows
    scores_QK = np.where(rows_QK >= 0, -np.arange(MEASURED), -np.inf).astype(np.float32)
    relevant = Ragged.from_lists(gold[paper] for paper in tagged)
    grades = Ragged(np.ones_like(relevant.values), relevant.offsets)
    qrels = Qrels(relevant, grades, len(members_C))
    judged = judge(Ranking(rows_QK, scores_QK), qrels)
    scores = {name: float(compute(name, judged).mean()) if tagged else 0.0 for name in METRICS}
    return {"papers": len(tagged), **scores}


def _reaches(tagger: Tagger, precision: float) -> bool:
    """Return whether a threshold guarantees a precision; warn if there is none."""
    try:
        tagger.tag([], k=None, precision=precision)
    except ConfigError as error:
        warn(f"no tags at the target precision: {error}")
        return False
    return True


def _pairs(
    tagger: Tagger, lists: Sequence[Sequence[SuggestedTag]], gold: Sequence[set[int]]
) -> tuple[FloatArray, BoolArray]:
    row = tagger.vocabulary.row
    scores = [tag.score for tags in lists for tag in tags]
    right = [row(tag.id) in rows for tags, rows in zip(lists, gold, strict=True) for tag in tags]
    return np.array(scores), np.array(right, dtype=bool)
