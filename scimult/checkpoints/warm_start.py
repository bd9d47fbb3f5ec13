"""Warm-start a model: copy the weights it shares with its base, into every expert if needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from scimult.checkpoints.weights import load_strictly
from scimult.errors import CheckpointError
from scimult.models import Encoder

# The last bank in a name is the routed one (an adapter's inside a feed-forward layer).
_EXPERT = re.compile(r"^(.*\.experts\.)(\d+)(\..*)$")
_CODES = "embeddings.codes.weight"
# Weights that a base may lack: they start neutral or random.
_ADDED = re.compile(r"\.adapter\.|\.lora\.|\.pal\.|^pal_projections\.|^embeddings\.codes\.")


def in_bank(name: str, weights: Mapping[str, object]) -> re.Match[str] | None:
    """Return the parts of a weight's name, if it is in a bank of several experts.

    They are what precedes the expert's number, the number, and what follows it.
    """
    match = _EXPERT.match(name)
    return match if match and f"{match[1]}1{match[3]}" in weights else None


def warm_start(
    model: Encoder,
    weights: dict[str, Tensor],
    path: Path | str = "weights",
    routes: Sequence[int] | None = None,
) -> None:
    """Fill ``model`` from weights of the same layout or of a simpler encoder.

    If a bank of ``model`` has several experts and the source a single layer, each expert becomes
    a copy of it, so that initial embeddings equal the source's (SciMult, appendix C: the two-stage
    strategy). A separate instruction encoder is copied from the encoder likewise. Adapters,
    low-rank updates, projected attention and control codes that the source lacks keep the values
    of ``model``.

    ``model`` is initialised already. ``path`` is the weights' origin, for messages. ``routes`` has,
    for each route of ``model``, the source's route to copy; by default that of the same number.

    Raises
    ------
    CheckpointError
        If the source has experts or added layers that the model lacks, or a weight is missing,
        extra or of another shape.
    """
    filled: dict[str, Tensor] = {}
    used: set[str] = set()
    own = model.state_dict()
    for key in own:
        source = next((name for name in _sources(key, weights, routes) if name in weights), None)
        if source is not None:
            filled[key] = weights[source] if source == key else weights[source].clone()
            used.add(source)
        elif _ADDED.search(key):
            filled[key] = own[key]
    if _CODES in used and routes is not None:
        filled[_CODES] = weights[_CODES][list(routes)]
    extra = sorted(weights.keys() - used)
    routed = [key for key in extra if _EXPERT.match(key) or _ADDED.search(key)]
    if routed:
        raise CheckpointError(
            "checkpoint has experts or added layers that the model does not",
            path=path,
            value=routed[0],
            fix="use its variant with its model.options and all its tasks, or a vanilla checkpoint",
        )
    load_strictly(model, filled | {key: weights[key] for key in extra}, path)


def _sources(key: str, weights: dict[str, Tensor], routes: Sequence[int] | None) -> list[str]:
    """Return the source's possible names for the weight ``key``, best first."""
    if key.startswith("instruction_encoder."):
        return [key, key.removeprefix("instruction_encoder.")]
    names = [key]
    if match := _EXPERT.match(key):
        head, number, tail = match[1], int(match[2]), match[3]
        if f"{head}1{tail}" in weights:
            source = number if routes is None or number >= len(routes) else routes[number]
            names = [f"{head}{source}{tail}"]
        else:
            names = [f"{head}0{tail}"]
        if head.endswith("attention.norm.experts."):
            names.append(head.removesuffix(".experts.") + tail)
    if key.startswith("blocks.") and ".feed_forward_norm." in key:
        names.append(key.replace(".feed_forward_norm.", ".feed_forward.experts.0.norm."))
    return names
