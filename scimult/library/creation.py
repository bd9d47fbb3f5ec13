"""An empty library: its folder with the spaces of a model and no papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scimult.files import atomic_folder
from scimult.library.encoding import folder_of, reference_to, shared_sides, sides_of, spaces_of
from scimult.library.manifest import PAPERS, TOKENIZER, VECTORS, Manifest, write_manifest
from scimult.retrieval.shards import Precision, publish

if TYPE_CHECKING:
    from scimult.inference import SciMult


def create_library(
    folder: Path,
    model: SciMult,
    path: Path,
    settings: Mapping[str, Any],
    tasks: Sequence[str],
    precision: Precision,
) -> None:
    """Write an empty library, atomically.

    Parameters
    ----------
    folder : Path
        Where; new or empty.
    model : SciMult
        What papers will be encoded with.
    path, settings
        What opens it again.
    tasks : sequence of str
        What papers are encoded for; empty for all that have papers.
    precision : {"float32", "float16"}
        Type of the vectors on disk.

    Raises
    ------
    StorageError
        If something is there.
    ConfigError, UnknownNameError
        If a task is not the model's or has no papers.
    """
    sides = sides_of(model, tasks)
    spaces = spaces_of(model, sides, precision)
    where = path.resolve() if path.exists() else path
    manifest = Manifest(
        model=reference_to(model, where, settings),
        vectors=folder_of(spaces),
        sides=sides,
        shared=shared_sides(model, sides),
    )
    with atomic_folder(folder) as temporary:
        (temporary / PAPERS).mkdir()
        for task, space in spaces.items():
            publish(temporary / VECTORS / manifest.vectors / f"{task}.{sides[task]}", space, [])
        model.save_tokenizer(temporary / VECTORS / manifest.vectors / TOKENIZER)
        write_manifest(temporary, manifest)
