"""What tells whether two models give the same embeddings."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import nn

from scimult.checkpoints import Pretrained
from scimult.inference.precision import TF32


def fingerprint_of(pretrained: Pretrained, model: nn.Module, dtype: str) -> str:
    """Hash weights, architecture, the way texts are read and scaled, and the type of products.

    Parameters
    ----------
    pretrained : Pretrained
        The model's tokenizer, tasks and settings.
    model : nn.Module
        Its weights as they are used, in ``dtype``.
    dtype : str
        One of ``precision.DTYPES``.
    """
    config = pretrained.config
    digest = hashlib.sha256(config.encoder.model_dump_json().encode())
    digest.update(f"{pretrained.tokenizer.fingerprint} {config.max_length}".encode())
    instructions = [task.instruction for task in config.tasks]
    scaling = ["unit vectors"] if config.unit_vectors else []
    digest.update(json.dumps([config.routing, instructions, *scaling]).encode())
    if dtype == TF32:
        digest.update(TF32.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
