"""The encoder of a tagger: how it is opened and described, and embeddings made before.

Shape legend: N papers, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.retrieval.faiss_indexes import for_faiss
from scimult.types import FloatArray, Similarity


def opened(
    model: Path | str | SciMult, device: str | None, dtype: str, settings: Mapping[str, Any]
) -> SciMult:
    """Return a model, loaded unless it is."""
    if isinstance(model, SciMult):
        return model
    return SciMult.from_pretrained(model, device=device, dtype=dtype, **settings)


def reference_of(
    encoder: SciMult, model: Path | str | SciMult, settings: Mapping[str, Any], task: str
) -> dict[str, Any]:
    """Return what opens the encoder again and tells whether it is the same.

    The similarity is not part of the fingerprint: vectors do not depend on it, but tags do.
    """
    location = {} if isinstance(model, SciMult) else {"path": _lasting(model)}
    return {
        **location,
        "dtype": encoder.dtype,
        "settings": dict(settings),
        "task": task,
        "similarity": encoder.similarity,
        "fingerprint": encoder.fingerprint,
    }


def checked_vectors(vectors: Any, papers: int, width: int, similarity: Similarity) -> FloatArray:
    """Return papers' embeddings of any floating type as float32, for cosines of length 1.

    Raises
    ------
    DataError
        If there are more or fewer than papers, or they have another width or type.
    """
    vectors_ND = np.asarray(vectors)
    if vectors_ND.shape != (papers, width) or vectors_ND.dtype.kind != "f":
        problem = f"vectors are {vectors_ND.dtype} of shape {vectors_ND.shape}"
        fix = f"give a floating point array of shape {(papers, width)}, a row for each paper"
        raise DataError(problem, fix=fix)
    return for_faiss(vectors_ND, similarity)


def _lasting(model: Path | str) -> str:
    """Return a model's path from any current folder; names of the hub and of packages stay."""
    return str(Path(model).absolute() if Path(model).exists() else model)
