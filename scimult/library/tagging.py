"""Label a library's papers.

Shape legend: N papers, C labels, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.inference.texts import as_text, id_of, rows_of
from scimult.library.results import SCORES, Hit, Hits, Tagged
from scimult.library.state import State
from scimult.terminal import is_blank
from scimult.types import FloatArray, IntArray, Text

if TYPE_CHECKING:
    from scimult.inference import SciMult

_BLOCK = 4096


class LabelIndex:
    """Labels, encoded by ``model``: names, or mappings with ``id``, ``name`` and ``definition``.

    A table of labels is read row by row.

    Raises
    ------
    ConfigError
        If the task does not rank labels for papers.
    DataError
        If there are no labels, one has no name, or an id repeats.
    """

    def __init__(
        self, model: SciMult, labels: Iterable[str | Mapping[str, Any]], task: str
    ) -> None:
        from scimult.retrieval.exact import ExactIndex

        model.tasks.check_labels(task)
        self.model, self.task = model, task
        self.ids, self.texts = _read(labels)
        self._labels_CD = model.encode(self.texts, task=task, role="candidate")
        self._index = ExactIndex(self.ids, self._labels_CD, model.similarity)

    def __len__(self) -> int:
        return len(self.ids)

    def best(self, papers_ND: FloatArray, k: int) -> list[list[tuple[int, float]]]:
        """Return rows and scores of the best ``k`` labels of each paper."""
        ranking = self._index.search(papers_ND, k)
        scores_NK = self._index.shown_scores(papers_ND, ranking)
        lists = zip(ranking.rows_QK.tolist(), scores_NK.tolist(), strict=True)
        return [list(zip(rows, scores, strict=True)) for rows, scores in lists]


def _read(labels: Iterable[str | Mapping[str, Any]]) -> tuple[list[str], list[Text]]:
    """Return ids and texts of labels; a string is both name and id."""
    rows = rows_of(labels)
    labels = labels if rows is None else rows
    if isinstance(labels, (str, Mapping)):
        raise DataError("labels is a single label", value=labels, fix="pass a list of labels")
    texts: dict[str, Text] = {}
    for index, label in enumerate(labels):
        text = as_text(label, "label", index)
        if is_blank(text.title):
            fix = "give every label a name; a definition is added to it"
            raise DataError(f"label {index} has no name", value=text.body, fix=fix)
        name = (isinstance(label, Mapping) and id_of(label.get("id"))) or text.title
        if name in texts:
            raise DataError("label is given twice", value=name, fix="give every label its own id")
        texts[name] = text
    if not texts:
        raise DataError("no labels given", fix="pass names, or mappings with id and name")
    return list(texts), list(texts.values())


def tag_rows(state: State, labels: LabelIndex, rows: IntArray, k: int) -> Iterator[Tagged]:
    """Yield papers with their best ``k`` labels, using stored vectors if the task has them.

    Raises
    ------
    ConfigError
        If ``k`` is not positive.
    """
    if k < 1:
        raise ConfigError("k must be at least 1", value=k, fix="request one label or more")
    model, task = labels.model, labels.task
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        texts, names = state.papers.texts_of(part), state.papers.ids_of(part)
        if state.manifest.sides.get(task) == "query":
            papers_ND = np.ascontiguousarray(state.shards(task).rows(part))
        else:
            papers_ND = model.encode(texts, task=task, role="query")
        for name, text, best in zip(names, texts, labels.best(papers_ND, k), strict=True):
            hits = [
                Hit(rank, score, labels.ids[row], labels.texts[row])
                for rank, (row, score) in enumerate(best, start=1)
            ]
            yield Tagged(name, text.title, Hits(hits, SCORES[model.similarity]))
