"""Arithmetic on the weights of models of one layout, in float64.

Averages are model soups (Wortsman et al. 2022), or, if one of two models is the base, WiSE-FT's
interpolation (Wortsman et al. 2022). Task vectors are what training added to the base (Ilharco et
al. 2023).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]

# Below this sine of their angle, two directions span no plane to rotate in.
_PARALLEL = 1e-6
BLOCK = re.compile(r"(?:instruction_encoder\.)?blocks\.(\d+)\.")


def average(models: Sequence[Weights], shares: Sequence[float]) -> dict[str, Tensor]:
    """Return Σ share · weight, with shares scaled to a sum of 1."""
    total = sum(shares)
    factors = [share / total for share in shares]
    return {name: _sum([model[name] for model in models], factors) for name in models[0]}


def add_task_vectors(
    base: Weights,
    models: Sequence[Weights],
    scales: Sequence[float],
    depth: Mapping[str, float] | None = None,
) -> dict[str, Tensor]:
    """Return base + Σ scale · (model − base); ``depth`` multiplies the scales of each weight."""
    merged = {}
    for name, tensor in base.items():
        own = [scale * (1.0 if depth is None else depth[name]) for scale in scales]
        merged[name] = _sum([tensor, *(model[name] for model in models)], [1 - sum(own), *own])
    return merged


def depth_factors(
    names: Iterable[str], by_depth: tuple[float, float], num_blocks: int
) -> dict[str, float]:
    """Return a factor for each weight, linear in depth from the first block to the last.

    ``(0, 1)`` is LiNeS, λ = (l − 1) / (L − 1) for block l of L (Wang et al. 2025). A norm after
    the last block counts as the last block; embeddings and the rest count as the first. Blocks of
    a separate instruction encoder have the depth of the blocks that they are copies of.
    """
    first, last = by_depth
    factors = {}
    for name in names:
        block = BLOCK.match(name)
        after_blocks = name.startswith("final_norm.")
        depth = int(block[1]) if block else num_blocks - 1 if after_blocks else 0
        factors[name] = first + (last - first) * depth / max(1, num_blocks - 1)
    return factors


def slerp(first: Weights, second: Weights, share: float) -> dict[str, Tensor]:
    """Rotate each weight of the first model towards the second's by a share of their angle.

    ``sin((1−t)Ω)/sin Ω · a + sin(tΩ)/sin Ω · b``, where Ω is the angle between two weights as
    vectors (Shoemake 1985); lengths are interpolated, too. Parallel or zero weights are averaged.
    Query, key and value are three weights, however they are stored.
    """

    def rotated(a: Tensor, b: Tensor) -> Tensor:
        lengths = a.norm() * b.norm()
        cosine = float((a * b).sum() / lengths) if float(lengths) else 1.0
        angle = math.acos(max(-1.0, min(1.0, cosine)))
        if math.sin(angle) < _PARALLEL:
            return (1 - share) * a + share * b
        shares = [math.sin((1 - share) * angle), math.sin(share * angle)]
        return (shares[0] * a + shares[1] * b) / math.sin(angle)

    merged = {}
    for name, tensor in first.items():
        parts = 3 if ".qkv." in name else 1
        pairs = zip(tensor.double().chunk(parts), second[name].double().chunk(parts), strict=True)
        merged[name] = torch.cat([rotated(a, b) for a, b in pairs]).to(tensor.dtype)
    return merged


def cosine(first: Weights, second: Weights, pattern: re.Pattern[str]) -> float:
    """Return the cosine of two models' matrices that a pattern names, taken as one vector."""
    names = [name for name in first if pattern.search(name) and first[name].ndim == 2]
    pairs = ((first, second), (first, first), (second, second))
    ab, aa, bb = (sum(float((a[name] * b[name]).sum()) for name in names) for a, b in pairs)
    return ab / math.sqrt(aa * bb) if aa * bb else math.nan


def _sum(tensors: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, factor in zip(tensors, factors, strict=True):
        total += factor * tensor.double()
    return total.to(tensors[0].dtype)
