"""What tells whether two models give the same embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from scimult.checkpoints.config import PretrainedConfig

if TYPE_CHECKING:
    from torch import Tensor

Stored = tuple[str, str, memoryview]
"""A weight: its name, torch's name of its type, and its bytes."""

OF_FLOAT32 = ("tf32", "int8")
"""Types of products whose factors are rounded from float32, which weights are kept in."""


def stored_tensors(weights: Mapping[str, Tensor]) -> Iterator[Stored]:
    """Yield tensors, by name, as `fingerprint_of` reads them."""
    import torch

    for name, tensor in sorted(weights.items()):
        data = tensor.cpu().contiguous().view(torch.uint8).numpy().data
        yield name, str(tensor.dtype), data


def fingerprint_of(
    config: PretrainedConfig, tokenizer: str, dtype: str, weights: Iterable[Stored]
) -> str:
    """Hash weights, architecture, the way texts are read and scaled, and the type of products.

    Parameters
    ----------
    config : PretrainedConfig
        The model's tasks and settings.
    tokenizer : str
        The fingerprint of its tokenizer.
    dtype : str
        One of ``precision.DTYPES``.
    weights : iterable of Stored
        As they are used, in ``dtype``; sorted by name.
    """
    digest = hashlib.sha256(config.encoder.model_dump_json().encode())
    digest.update(f"{tokenizer} {config.max_length}".encode())
    instructions = [task.instruction for task in config.tasks]
    scaling = ["unit vectors"] if config.unit_vectors else []
    digest.update(json.dumps([config.routing, instructions, *scaling]).encode())
    if dtype in OF_FLOAT32:
        digest.update(dtype.encode())
    for name, kind, data in weights:
        digest.update(f"{name} {kind}".encode())
        digest.update(data)
    return digest.hexdigest()[:16]
