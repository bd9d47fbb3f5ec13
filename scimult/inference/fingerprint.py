"""What tells whether two models give the same embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from scimult.checkpoints.config import PretrainedConfig

Stored = tuple[str, str, memoryview]
"""A weight: its name, torch's name of its type, and its bytes."""


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
    if dtype == "tf32":
        digest.update(dtype.encode())
    for name, kind, data in weights:
        digest.update(f"{name} {kind}".encode())
        digest.update(data)
    return digest.hexdigest()[:16]
