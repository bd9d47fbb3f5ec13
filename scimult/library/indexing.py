"""Making the approximate index of a library's space, and tuning it on the library's own queries."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from scimult.errors import ConfigError
from scimult.inference import SciMult
from scimult.library.approximate import ApproximateSearch, IndexFacts, Kind, build, tuned
from scimult.library.exact import ExactSearch
from scimult.library.manifest import INDEXES, write_manifest
from scimult.library.state import State
from scimult.types import FloatArray, IntArray

LEAST = 1000
"""Papers below which an index has nothing to gain."""
_QUERIES = 256


def make_index(state: State, model: SciMult, task: str, kind: Kind, target: float) -> IndexFacts:
    """Make and tune the index of a task, and make it the library's; the caller holds its lock.

    The queries it is tuned on are what the task looks for papers with: titles, or whole papers,
    of a sample of the library; a paper is left out of what its own query should find.

    Raises
    ------
    ConfigError
        If there are too few papers, or the target is no share.
    """
    if not 0 < target < 1:
        raise ConfigError("no share of the best", value=target, fix="ask for one such as 0.95")
    rows = state.live_rows()
    if len(rows) < LEAST:
        fix = f"search exactly, or add papers: {LEAST:,} at least"
        raise ConfigError("too few papers for an index", value=len(rows), fix=fix)
    name = f"{task}.{state.manifest.generation + 1:06d}.faiss"
    path, shards = state.folder / INDEXES / name, state.shards(task)
    facts = build(path, kind, shards, state.live_N)
    exact = ExactSearch(shards, state.manifest.longest[task], state.papers.ids_of)
    search = ApproximateSearch(path, facts, shards, exact, state.papers.ids_of)
    chosen = np.random.default_rng(1).permutation(rows)[:_QUERIES]
    queries_QD = queries_of(state, model, task, chosen)
    live_N = state.live_N.copy()
    live_N[chosen] = False
    facts = tuned(search, queries_QD, exact.best(queries_QD, 10, live_N), live_N, target)
    before = state.manifest.indexes.get(task)
    indexes = {**state.manifest.indexes, task: asdict(facts)}
    write_manifest(state.folder, state.manifest.changed(indexes=indexes))
    if before is not None:
        Path(state.folder, INDEXES, str(before["file"])).unlink(missing_ok=True)
    return facts


def queries_of(state: State, model: SciMult, task: str, rows: IntArray) -> FloatArray:
    """Return papers as a task's queries: their titles where it looks with words."""
    texts = state.papers.texts_of(rows)
    if model.kind(task, "query") == "paper":
        return model.encode(texts, task=task, role="query")
    return model.encode([text.title or text.body for text in texts], task=task, role="query")
