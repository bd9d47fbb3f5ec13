"""Move a library to another model: encode its papers again, or fit an adapter.

A migration fills spaces of the new model shard by shard, then ``library.json`` names them. Until
then the library is searched as before, and a killed migration resumes where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.arrays import load_arrays, save_arrays
from scimult.errors import ConfigError, DataError
from scimult.library.compaction import compact
from scimult.library.drift import Adapter, fit_adapter
from scimult.library.encoding import (
    encode_papers,
    folder_of,
    reference_to,
    shared_sides,
    sides_of,
    spaces_of,
)
from scimult.library.manifest import INDEXES, TOKENIZER, VECTORS, Manifest, write_manifest
from scimult.library.state import State, check_whole
from scimult.library.writing import longest_of
from scimult.progress import bar, note
from scimult.retrieval.shards import (
    Shard,
    Shards,
    find_shard,
    fingerprint_of_texts,
    publish,
    write_shard,
)
from scimult.retrieval.space import Precision

if TYPE_CHECKING:
    from scimult.inference import SciMult

SAMPLE = 2000
"""Papers that an adapter is fitted to."""


@dataclass
class Migrated:
    """The outcome of a migration: papers of the library, and how many were encoded."""

    papers: int = 0
    texts_encoded: int = 0


def migrate(
    state: State,
    model: SciMult,
    path: Path,
    settings: Mapping[str, Any],
    precision: Precision | None = None,
    *,
    show_progress: bool = False,
) -> Migrated:
    """Encode a library with another model and switch to it; the caller holds the lock.

    Raises
    ------
    DataError
        If papers are unreadable.
    ConfigError, UnknownNameError
        If the model does not have the library's tasks.
    """
    check_whole(state)
    state = compact(state, everything=True)
    manifest = state.manifest
    sides = sides_of(model, manifest.sides)
    dtype = state.shards(next(iter(sides))).space.dtype
    spaces = spaces_of(model, sides, precision or dtype)
    name, done = folder_of(spaces), Migrated(papers=manifest.rows)
    reference = reference_to(model, path, settings)
    if name == manifest.vectors:
        # The same model, perhaps at another place.
        if reference != manifest.model:
            write_manifest(state.folder, manifest.changed(model=reference))
        _remove_others(state.folder, manifest)
        return done
    folders = {task: state.folder / VECTORS / name / f"{task}.{sides[task]}" for task in sides}
    listed: dict[str, list[Shard]] = {task: [] for task in sides}
    with bar("papers", total=manifest.rows, unit="paper", show=show_progress) as meter:
        for index, segment in enumerate(manifest.segments):
            rows = np.arange(state.papers.starts[index], state.papers.starts[index + 1])
            number, table = int(segment.name), state.papers.table(rows, ["id", "text_hash"])
            ids, hashes = (table[name].to_pylist() for name in ("id", "text_hash"))
            # Those of an earlier attempt, if all tasks have one.
            texts = fingerprint_of_texts(ids, hashes)
            shards = [find_shard(folders[task], number, spaces[task], texts) for task in sides]
            if None in shards:
                vectors = encode_papers(model, state.papers.texts_of(rows), sides)
                done.texts_encoded += len(rows)
                shards = [
                    write_shard(folders[task], number, spaces[task], ids, vectors[task], hashes)
                    for task in sides
                ]
            for task, shard in zip(sides, shards, strict=True):
                assert shard is not None
                listed[task].append(shard)
            meter.update(segment.rows)
    for task, space in spaces.items():
        publish(folders[task], space, listed[task])
    model.save_tokenizer(state.folder / VECTORS / name / TOKENIZER)
    values = {
        "model": reference,
        "vectors": name,
        "sides": sides,
        "shared": shared_sides(model, sides),
        "longest": {task: _longest(folders[task]) for task in sides},
        "indexes": {},
        "words": {},
        "words_rules": {},
        "adapter": {},
    }
    for task in manifest.indexes:
        note(f"{task}: its index was the former model's; scimult library index makes another")
    manifest = manifest.changed(**values)
    write_manifest(state.folder, manifest)
    _remove_others(state.folder, manifest)
    return done


def _longest(folder: Path) -> float:
    return max(
        (longest_of(np.asarray(x, np.float32)) for _, x in Shards(folder).blocks()), default=0
    )


def _remove_others(folder: Path, manifest: Manifest) -> None:
    """Remove the vectors, indexes and adapters of models that the library has left."""
    for path in (folder / VECTORS).iterdir():
        if path.name != manifest.vectors:
            shutil.rmtree(path, ignore_errors=True)
    if not manifest.indexes:
        shutil.rmtree(folder / INDEXES, ignore_errors=True)
    for path in folder.glob("adapter.*.npz"):
        if path.name != manifest.adapter.get("file"):
            path.unlink(missing_ok=True)


def adapt(
    state: State,
    model: SciMult,
    path: Path,
    settings: Mapping[str, Any],
    sample: int = SAMPLE,
) -> dict[str, Adapter]:
    """Fit a map from a new model's vectors to the library's, for each searchable task.

    Raises
    ------
    ConfigError
        If the model's similarity differs.
    """
    shared = {task: role for task, role in state.manifest.sides.items() if role == "candidate"}
    if not shared:
        fix = "encode it again: scimult library migrate without --adapter"
        raise ConfigError("an adapter needs a task that searches for papers", fix=fix)
    spaces = spaces_of(model, sides_of(model, shared), "float32")
    old = state.shards(next(iter(shared))).space
    if model.similarity != old.similarity:
        fix = "encode it again: scimult library migrate without --adapter"
        problem = f"the library compares by {old.similarity}, the model by {model.similarity}"
        raise ConfigError(problem, fix=fix)
    rows = np.sort(np.random.default_rng(0).permutation(state.live_rows())[:sample])
    vectors = encode_papers(model, state.papers.texts_of(rows), shared)
    adapters = {
        task: fit_adapter(vectors[task], state.shards(task).rows(rows), model.similarity)
        for task in shared
    }
    name = f"adapter.{state.manifest.generation + 1:06d}.npz"
    arrays = {f"{task}.matrix": one.matrix_MD for task, one in adapters.items()}
    arrays |= {f"{task}.offset": one.offset_D for task, one in adapters.items()}
    save_arrays(state.folder / name, **arrays)
    facts = {
        "file": name,
        "model": reference_to(model, path, settings),
        "spaces": {task: space.fingerprint for task, space in spaces.items()},
        "fitted": {task: [one.kind, one.recall] for task, one in adapters.items()},
    }
    before = state.manifest.adapter.get("file")
    write_manifest(state.folder, state.manifest.changed(adapter=facts))
    if before:
        (state.folder / str(before)).unlink(missing_ok=True)
    return adapters


def adapter_for(state: State, model: SciMult) -> dict[str, Adapter]:
    """Return the adapters for a model's queries, by task; empty if there are none.

    Raises
    ------
    DataError
        If their file is damaged.
    """
    facts = state.manifest.adapter
    if not facts:
        return {}
    sides = {task: state.manifest.sides[task] for task in facts["spaces"]}
    if not all(task in model.tasks for task in sides):
        return {}
    spaces = spaces_of(model, sides, "float32")
    if {task: space.fingerprint for task, space in spaces.items()} != facts["spaces"]:
        return {}
    path = state.folder / str(facts["file"])
    on_sphere = model.similarity == "cosine"
    try:
        arrays = load_arrays(path)
        return {
            task: Adapter(
                kind, arrays[f"{task}.matrix"], arrays[f"{task}.offset"], recall, on_sphere
            )
            for task, (kind, recall) in facts["fitted"].items()
        }
    except (OSError, ValueError, KeyError, EOFError) as error:
        fix = "fit it again with scimult library migrate --adapter"
        raise DataError(f"damaged adapter: {error}", path=path, fix=fix) from error
