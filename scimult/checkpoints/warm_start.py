"""Warm start: every expert begins as an exact copy of the layer it multiplies."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from scimult.checkpoints.weights import load_strictly
from scimult.errors import CheckpointError
from scimult.models import Encoder

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def warm_start(model: Encoder, weights: dict[str, Tensor], path: Path | str = "weights") -> None:
    """Fill ``model`` from weights of the same layout or of a vanilla encoder.

    Where a bank of ``model`` holds several experts and the source a single one, each
    expert becomes a copy of it, so that the first embeddings equal the source's
    (SciMult, appendix C: the two-stage strategy).

    Raises
    ------
    CheckpointError
        If the source has experts where the model has another number of them, or if a
        weight is missing, extra or of another shape.
    """
    expanded: dict[str, Tensor] = {}
    for key in model.state_dict():
        only = _EXPERT.sub(".experts.0.", key)
        second = _EXPERT.sub(".experts.1.", key)
        if key in weights:
            expanded[key] = weights[key]
        elif only in weights and second not in weights:
            expanded[key] = weights[only].clone()
    unused = {key for key in weights.keys() - expanded.keys() if _EXPERT.search(key) is not None}
    if unused:
        raise CheckpointError(
            "checkpoint has experts that the model does not",
            path=path,
            value=sorted(unused)[0],
            fix="use the checkpoint's own variant, or warm-start from a vanilla checkpoint",
        )
    load_strictly(model, expanded | {k: v for k, v in weights.items() if k not in expanded}, path)
