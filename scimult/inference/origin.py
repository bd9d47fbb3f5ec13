"""What the vectors of a model depend on, by name: what shards and libraries say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.retrieval.shards import Precision, Space
from scimult.types import Role

if TYPE_CHECKING:
    from scimult.inference.encoder import SciMult
    from scimult.inference.query_encoder import QueryEncoder


def space_of(
    model: SciMult | QueryEncoder, task: str, role: Role, precision: Precision = "float32"
) -> Space:
    """Return the space of the vectors that ``model`` makes for one side of a task.

    Parameters
    ----------
    model : SciMult or QueryEncoder
        The encoder.
    task, role : str
        What texts are encoded for.
    precision : {"float32", "float16"}
        Type of the numbers on disk.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``, or ``role`` is not a side.
    """
    model.kind(task, role)
    config, tokenizer = model.config, model.tokenizer
    return Space(
        width=model.width,
        similarity=model.similarity,
        dtype=precision,
        made_by={
            "weights": model.fingerprint,
            "tokenizer": tokenizer.fingerprint,
            "max_length": config.max_length,
            "pooling": config.encoder.pooling,
            "unit_vectors": model.unit_vectors,
            "computed_in": model.dtype,
            "task": task,
            "role": role,
        },
        model=model.name,
    )


def sides_are_one(model: SciMult, task: str) -> bool:
    """Return whether a text has the same vector as query and as candidate of a task."""
    same_kind = model.kind(task, "query") == model.kind(task, "candidate")
    query, candidate = (model.config.route(task, role) for role in ("query", "candidate"))
    return same_kind and query == candidate
