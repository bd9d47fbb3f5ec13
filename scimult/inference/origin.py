"""What a model's vectors depend on: its fingerprint, and the space of its shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from scimult.checkpoints.config import PretrainedConfig
from scimult.errors import one_of
from scimult.retrieval.space import Precision, Space
from scimult.tasks import TaskSet, catalogue
from scimult.types import Kind, Role, Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from scimult.inference.encoder import SciMult
    from scimult.inference.query_encoder import QueryEncoder


class Configured:
    """What both encoders of a model know from its configuration.

    Attributes
    ----------
    config : PretrainedConfig
        The model's tasks and settings.
    """

    config: PretrainedConfig

    @property
    def similarity(self) -> Similarity:
        """How two embeddings are compared."""
        return self.config.similarity

    @property
    def unit_vectors(self) -> bool:
        """Whether embeddings have length 1."""
        return self.config.unit_vectors

    @property
    def width(self) -> int:
        """Number of dimensions of an embedding."""
        return self.config.encoder.width

    @property
    def tasks(self) -> TaskSet:
        """Tasks that the model knows."""
        return TaskSet(self.config.tasks)

    def kind(self, task: str, role: Role) -> Kind:
        """Return the kind of text on one side of a task; see `TaskSet.kind`."""
        return self.tasks.kind(task, role)


def space_of(
    model: SciMult | QueryEncoder, task: str, role: Role, precision: Precision = "float32"
) -> Space:
    """Return the space of a model's vectors for one side of a task.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``, ``role`` is not a side, or there is no such precision.
    """
    one_of("precision", precision, get_args(Precision))
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
            **({"int8_ranges": _INT8_RANGES} if model.dtype == "int8" else {}),
            "task": task,
            "role": role,
        },
        model=model.name,
    )


def sides_are_one(model: SciMult, task: str) -> bool:
    """Return whether a text has the same vector as a task's query and as its candidate."""
    same_kind = model.kind(task, "query") == model.kind(task, "candidate")
    query, candidate = (model.config.route(task, role) for role in ("query", "candidate"))
    return same_kind and query == candidate


Stored = tuple[str, str, memoryview]
"""A weight: its name, torch's name of its type, and its bytes."""

OF_FLOAT32 = ("tf32", "int8")
"""Computation types that keep float32 weights and round the factors of products."""

INT8_STEPS = 127
"""Steps to which int8 rounds a weight, unless the processor lacks VNNI: `largest_weight`."""

_INT8_RANGES = "shared"
"""How int8 chooses its ranges; change it when its vectors change by more than their last digits."""


def stored_tensors(weights: Mapping[str, Tensor]) -> Iterator[Stored]:
    """Yield tensors, sorted by name, in the form that `fingerprint_of` hashes."""
    import torch

    for name, tensor in sorted(weights.items()):
        data = tensor.cpu().contiguous().view(torch.uint8).numpy().data
        yield name, str(tensor.dtype), data


def fingerprint_of(
    config: PretrainedConfig,
    tokenizer: str,
    dtype: str,
    weights: Iterable[Stored],
    *,
    int8_steps: int = INT8_STEPS,
) -> str:
    """Hash weights, architecture, how texts are read and scaled, and the computation type.

    ``tokenizer`` is a fingerprint, ``dtype`` one of ``precision.DTYPES``; weights are in that type,
    sorted by name. int8 rounds weights to more or fewer steps on different processors, and has had
    other ranges: such vectors must not be mixed.
    """
    digest = hashlib.sha256(config.encoder.model_dump_json().encode())
    digest.update(f"{tokenizer} {config.max_length}".encode())
    instructions = [task.instruction for task in config.tasks]
    scaling = ["unit vectors"] if config.unit_vectors else []
    digest.update(json.dumps([config.routing, instructions, *scaling]).encode())
    if own := _routes_of_own_tasks(config):
        digest.update(json.dumps(own, sort_keys=True).encode())
    if dtype in OF_FLOAT32:
        digest.update(dtype.encode())
    if dtype == "int8":
        digest.update(f" {int8_steps} {_INT8_RANGES}".encode())
    for name, kind, data in weights:
        digest.update(f"{name} {kind}".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def _routes_of_own_tasks(config: PretrainedConfig) -> dict[str, list[int]]:
    """Return the routes that tell apart models of equal weights whose tasks change places.

    Tasks of the catalogue are told by the order of their instructions, which are unique.
    """
    if not config.encoder.is_routed:
        return {}
    known = list(catalogue())
    return {
        task.name: [config.route(task.name, role) for role in get_args(Role)]
        for task in config.tasks
        if task not in known
    }
