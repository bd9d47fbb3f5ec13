"""Clustered vectors in a folder of shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scimult.retrieval.shards import Shards, publish, write_shard
from scimult.retrieval.space import Space
from scimult.types import FloatArray, Similarity

WIDTH = 32


def ids_of(rows: np.ndarray) -> list[str]:
    """Return ids in the order of the rows."""
    return [f"{row:06d}" for row in rows]


def clustered(rows: int, seed: int) -> FloatArray:
    """Return vectors around the same 60 centres for every seed."""
    centres = np.random.default_rng(7).standard_normal((60, WIDTH))
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((rows, WIDTH))
    return (centres[generator.integers(0, 60, rows)] + 0.6 * noise).astype(np.float32)


def space_of_vectors(folder: Path, similarity: Similarity) -> Shards:
    """Write 8,000 vectors in two shards."""
    space, vectors_ND = Space(WIDTH, similarity), clustered(8000, 1)
    parts = [vectors_ND[:5000], vectors_ND[5000:]]
    publish(
        folder,
        space,
        [
            write_shard(folder, number, space, [str(i) for i in range(len(part))], part)
            for number, part in enumerate(parts)
        ],
    )
    return Shards(folder)
