"""The origin of stored vectors, which tells vectors that may be compared from others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scimult.errors import DataError
from scimult.types import Similarity

Precision = Literal["float32", "float16"]
_HASHED_WITH_WEIGHTS = {
    *("tokenizer", "max_length", "pooling", "unit_vectors", "computed_in", "int8_ranges")
}


@dataclass(frozen=True)
class Space:
    """The origin of vectors and how to compare them; only vectors of equal spaces may mix.

    Attributes
    ----------
    width : int
        Dimensions of a vector.
    similarity : {"dot", "cosine", "l2"}
        How two vectors are compared.
    dtype : {"float32", "float16"}
        Number type on disk.
    made_by : mapping of str to str, int or bool
        Everything else that the vectors depend on, by name: fingerprints of model and tokenizer,
        settings, task and role.
    model : str
        Display name of the model; it plays no part in equality.
    """

    width: int
    similarity: Similarity
    dtype: Precision = "float32"
    made_by: Mapping[str, str | int | bool] = field(default_factory=dict)
    model: str = field(default="", compare=False)

    @property
    def fingerprint(self) -> str:
        """Hash of everything the vectors depend on."""
        text = json.dumps(_flat(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check_same(self, other: Space, path: Path, instead: str = "another folder") -> None:
        """Check that vectors of ``other`` may join those of this space at ``path``.

        ``instead`` is what else the message suggests.

        Raises
        ------
        DataError
            Naming everything that differs.
        """
        ours, theirs = _flat(self), _flat(other)
        names = [name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)]
        if not names:
            return
        # The hash of the weights is of these, too, and would hide that they are all that differs.
        if self.model == other.model and not _HASHED_WITH_WEIGHTS.isdisjoint(names):
            names = [name for name in names if name != "weights"]
        differences = [
            f"{name} {_shown(theirs, name)}, here {_shown(ours, name)}"
            for name in dict.fromkeys(names)
        ]
        models = f" of {other.model!r}, here of {self.model!r}" if other.model else ""
        raise DataError(
            f"vectors{models} differ in {'; '.join(differences)}",
            path=path,
            fix=f"use the model and settings that made the vectors here, or {instead}",
        )


def _flat(space: Space) -> dict[str, Any]:
    own = {"width": space.width, "similarity": space.similarity, "dtype": space.dtype}
    return {**space.made_by, **own}


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "unknown"
