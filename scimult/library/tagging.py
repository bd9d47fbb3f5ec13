"""Label a library's papers.

Shape legend: N papers, C labels, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.inference.texts import as_text
from scimult.library.results import SCORES, Hit, Hits, Tagged
from scimult.library.state import State
from scimult.types import FloatArray, IntArray, Text

if TYPE_CHECKING:
    from scimult.inference import SciMult

_BLOCK = 4096


def as_labels(labels: Iterable[str | Mapping[str, Any]]) -> tuple[list[str], list[Text]]:
    """Return ids and texts of labels; a string is both name and id.

    Raises
    ------
    DataError
        If there are no labels, one has no name, or an id repeats.
    """
    ids, texts = [], []
    for index, label in enumerate(labels):
        text = as_text(label, "label", index)
        name = label.get("id", text.title) if isinstance(label, Mapping) else text.title
        ids.append(str(name))
        texts.append(text)
    if not ids:
        raise DataError("no labels given", fix="pass names, or mappings with id and name")
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError("label is given twice", value=twice, fix="give every label its own id")
    return ids, texts


def tag_rows(
    state: State,
    model: SciMult,
    rows: IntArray,
    ids: Sequence[str],
    labels: Sequence[Text],
    *,
    k: int,
    task: str,
) -> Iterator[Tagged]:
    """Yield papers with their best ``k`` labels, using stored vectors if the task has them.

    Raises
    ------
    ConfigError
        If the task does not rank labels for papers, or ``k`` is not positive.
    """
    model.tasks.check_labels(task)
    if k < 1:
        raise ConfigError("k must be at least 1", value=k, fix="request one label or more")
    from scimult.retrieval.exact import ExactIndex

    labels_CD = model.encode(labels, task=task, role="candidate")
    index = ExactIndex(ids, labels_CD, model.similarity)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        texts, names = state.papers.texts_of(part), state.papers.ids_of(part)
        ranking = index.search(_vectors(state, model, part, texts, task), k)
        lists = zip(names, texts, ranking.rows_QK, ranking.scores_QK, strict=True)
        for name, text, rows_K, scores_K in lists:
            ranked = enumerate(zip(rows_K, scores_K, strict=True), start=1)
            hits = [Hit(rank, float(score), ids[row], labels[row]) for rank, (row, score) in ranked]
            yield Tagged(name, text.title, Hits(hits, SCORES[model.similarity]))


def _vectors(
    state: State, model: SciMult, rows: IntArray, texts: Sequence[Text], task: str
) -> FloatArray:
    if state.manifest.sides.get(task) == "query":
        return np.ascontiguousarray(state.shards(task).rows(rows))
    return model.encode(texts, task=task, role="query")
