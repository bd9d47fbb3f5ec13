"""Write self-supervised pair files: each paper is its own positive, under two views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from scimult.config import StrictConfig
from scimult.data.manifest import PairEntry
from scimult.data.pairs import PairFile, write_pairs
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged
from scimult.data.views import ViewName
from scimult.errors import ConfigError, UnknownNameError
from scimult.files import atomic_file
from scimult.tasks import TaskSet
from scimult.types import IntArray, Text


class SelfSupervisionConfig(StrictConfig):
    """Self-supervised pairs from the papers of one source, named ``<source>-<view>``.

    Parameters
    ----------
    source : str
        Source of the papers.
    view : str
        ``independent_crop``, ``inverse_cloze`` or ``title_to_abstract``.
    task : str
        The task that the pairs train.
    min_words : int
        Shorter texts are left out and counted; for ``title_to_abstract``, words of the abstract.
    """

    source: str
    view: ViewName
    task: str
    min_words: Annotated[int, Field(ge=1)] = 20


def add_view_pairs(folder: Path, chosen: Sequence[SelfSupervisionConfig], tasks: TaskSet) -> None:
    """Add a pair file for each choice to a prepared folder and its manifest.

    Papers that the dev split keeps out of training are skipped.

    Raises
    ------
    UnknownNameError
        If a source or a task is unknown.
    ConfigError
        If a task's candidates are not papers, or no paper is left.
    """
    if not chosen:
        return
    data = PreparedData.open(folder)
    spaces = {source.name: source.namespace for source in data.manifest.sources}
    held_out = data.held_out()
    for choice in chosen:
        if choice.source not in spaces:
            raise UnknownNameError("source in self_supervision", choice.source, spaces)
        if tasks[choice.task].candidate_kind != "paper":
            fix = "name a task whose candidates are papers"
            raise ConfigError("views need a task that finds papers", value=choice.task, fix=fix)
        papers = np.setdiff1d(data.papers(spaces[choice.source]), held_out)
        rows = _long_enough(data, papers, choice)
        if not len(rows):
            fix = "lower min_words or name another source"
            raise ConfigError("no paper is long enough", value=choice.source, fix=fix)
        entry = _write(folder, rows, choice, spaces[choice.source])
        entry.too_short = len(papers) - len(rows)
        data.manifest.pairs.append(entry)
    known = {task.name for task in data.manifest.tasks}
    for name in dict.fromkeys(choice.task for choice in chosen):
        if name not in known:
            data.manifest.tasks.append(tasks[name])
    data.manifest.write(folder)


def _write(folder: Path, rows: IntArray, choice: SelfSupervisionConfig, space: str) -> PairEntry:
    pairs = PairFile(
        f"{choice.source}-{choice.view}",
        choice.task,
        "train",
        rows,
        Ragged(rows, np.arange(len(rows) + 1, dtype=np.int64)),
        Ragged.empty(len(rows)),
        view=choice.view,
        namespace=space,
        part="views",
    )
    entry = PairEntry.of(pairs)
    with atomic_file(folder / entry.file) as temporary:
        write_pairs(temporary, pairs)
    return entry


def _long_enough(data: PreparedData, rows: IntArray, choice: SelfSupervisionConfig) -> IntArray:
    enough = (
        _words(data.texts.text(row), choice.view) >= choice.min_words for row in rows.tolist()
    )
    long_rows: IntArray = rows[np.fromiter(enough, dtype=np.bool_, count=len(rows))]
    return long_rows


def _words(text: Text, view: ViewName) -> int:
    if view == "title_to_abstract":
        return len(text.body.split()) if text.title.strip() else 0
    return len(text.title.split()) + len(text.body.split())
