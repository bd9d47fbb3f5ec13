"""Make a library's approximate indexes, tune them on its own queries, keep them up to date."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.errors import ConfigError, DataError, StorageError
from scimult.files import only_writer
from scimult.library.approximate import (
    ApproximateSearch,
    IndexFacts,
    Kind,
    mapped_index,
    tuned,
)
from scimult.library.building import Parts, build, extend
from scimult.library.exact import ExactSearch
from scimult.library.manifest import INDEXES, write_manifest
from scimult.library.state import State, check_whole
from scimult.library.writing import check_model, remove_unlisted
from scimult.progress import note

if TYPE_CHECKING:
    from scimult.inference import SciMult
    from scimult.inference.bulk import Part

LEAST = 1000
"""Papers below which an index gains nothing."""
_QUERIES = 256
# An index is extended once newer papers, which are searched exactly, exceed this share of its own.
_LATE = 0.05


def make_index(
    folder: Path, model: SciMult, task: str, kind: Kind, target: float, part: Part | None = None
) -> IndexFacts | list[int]:
    """Build and tune a task's index, and add it to the library.

    It is tuned on the queries that the task takes: titles, or whole papers, of a sample of the
    library. Sampled papers are excluded from the results.

    Returns
    -------
    IndexFacts or list of int
        For one part among several, the numbers of the missing parts.

    Raises
    ------
    ConfigError
        If there are too few papers, the target is not between 0 and 1, or the kind cannot be
        built in parts.
    DataError
        If papers are unreadable, or another model has encoded them.
    StorageError
        If another process writes the library.
    """
    if not 0 < target < 1:
        raise ConfigError("not a valid target recall", value=target, fix="use one such as 0.95")
    state = State(folder)
    check_whole(state)
    check_model(state, model)
    if len(state.live_rows()) < LEAST:
        fix = f"search exactly, or add papers: at least {LEAST:,}"
        raise ConfigError("too few papers for an index", value=len(state.live_rows()), fix=fix)
    if part is None or part.count == 1:
        with only_writer(folder):
            state = State(folder)
            check_model(state, model)
            path = _path(state, task)
            facts = build(path, kind, state.shards(task), state.live_N)
            return _tuned(state, path, facts, model, task, target)
    # Parts filled from different papers or by different models belong in different folders.
    content = _content(state)
    meeting = folder / INDEXES / f"{task}.{kind}.{content}.{part.count}"
    for stale in folder.glob(f"{INDEXES}/{task}.*.*.*"):
        if content not in stale.name:
            shutil.rmtree(stale, ignore_errors=True)
    parts = Parts(meeting, kind, state.shards(task), state.live_N, part.count)
    if not parts.fill(part):
        return parts.missing()
    with only_writer(folder):
        current = State(folder)
        if _content(current) != content:
            parts.remove()
            fix = "run every part again"
            raise StorageError("library changed while its index was built", path=folder, fix=fix)
        former, state = state.manifest.indexes.get(task), current
        check_model(state, model)
        if missing := parts.missing():
            # Another process saw all parts too, and has published the index, or removed damage.
            published = state.manifest.indexes.get(task)
            return missing if published in (None, former) else IndexFacts(**published)
        path = _path(state, task)
        facts = _tuned(state, path, parts.merge(path), model, task, target)
        # Not before the index is published: a killed process would lose what all have filled.
        parts.remove()
        return facts


def keep_up(state: State) -> None:
    """Bring indexes up to date with their present settings; the caller holds the lock.

    Newer papers are added once they exceed a share of those in the index; an index whose rows were
    renumbered, so that it has no file, is rebuilt. Nothing happens while papers are unreadable:
    rows that an index passes over would not be found once their file is restored.
    """
    if not state.is_whole:
        return
    indexes = dict(state.manifest.indexes)
    for task, known in state.manifest.indexes.items():
        facts = IndexFacts(**known)
        shards, path = state.shards(task), _path(state, task)
        if facts.file:
            if int(state.live_N[facts.rows :].sum()) <= _LATE * facts.papers:
                continue
            old = state.folder / INDEXES / facts.file
            with suppress(DataError):
                indexes[task] = asdict(extend(path, old, facts, shards, state.live_N))
                continue
        if len(state.live_rows()) < LEAST:
            indexes.pop(task, None)
            continue
        note(f"{task}: rebuilding the index, which is damaged or has outdated row numbers")
        fresh = build(path, facts.kind, shards, state.live_N)
        facts = replace(facts, file=fresh.file, rows=fresh.rows, papers=fresh.papers)
        indexes[task] = asdict(facts)
    _publish(state, indexes)


def damaged_indexes(state: State) -> list[DataError]:
    """Return the damage of indexes that cannot be opened."""
    errors = []
    for known in state.manifest.indexes.values():
        try:
            if known["file"]:
                mapped_index(state.folder / INDEXES / str(known["file"]))
        except DataError as error:
            errors.append(error)
    return errors


def _content(state: State) -> str:
    """Name the rows and their vectors, on which an index depends."""
    return f"{state.numbering}-{state.manifest.vectors}"


def _path(state: State, task: str) -> Path:
    return state.folder / INDEXES / f"{task}.{state.manifest.generation + 1:06d}.faiss"


def _tuned(
    state: State, path: Path, facts: IndexFacts, model: SciMult, task: str, target: float
) -> IndexFacts:
    shards = state.shards(task)
    exact = ExactSearch(shards, state.manifest.longest[task], state.papers.ids_of)
    search = ApproximateSearch(path, facts, shards, exact, state.papers.ids_of)
    sample = np.random.default_rng(1).permutation(state.live_rows())[:_QUERIES]
    texts: list[Any] = state.papers.texts_of(sample)
    if model.kind(task, "query") != "paper":
        texts = [text.title or text.body for text in texts]
    queries_QD = model.encode(texts, task=task, role="query")
    live_N = state.live_N.copy()
    live_N[sample] = False
    facts = tuned(search, queries_QD, exact.best(queries_QD, 10, live_N), live_N, target)
    _publish(state, {**state.manifest.indexes, task: asdict(facts)})
    return facts


def _publish(state: State, indexes: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the library's indexes, and remove the files of others."""
    if dict(state.manifest.indexes) == dict(indexes):
        return
    manifest = state.manifest.changed(indexes=dict(indexes))
    write_manifest(state.folder, manifest)
    remove_unlisted(state.folder, manifest)
