"""Dropout whose masks are cheap to draw on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_DRAWS_PER_WORD = 4
_LEVELS = 1 << 16


def apply_dropout(x: Tensor, probability: float, training: bool = True) -> Tensor:
    """Zero elements with ``probability`` and scale the others to keep the mean.

    On a CPU torch draws one random number per element, the second most expensive part of a
    training step. Here one 64-bit draw decides four elements, so the probability is rounded to
    a multiple of 2**-16; in bfloat16 to one whose scale has eight bits (0.0986 for 0.1), because a
    rounded scale would shrink the mean. Masks come from torch's own generator.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    if torch.compiler.is_compiling():
        from scimult.models.uncompiled import scaled_mask as mask
    else:
        mask = scaled_mask
    dropped: Tensor = x * mask(x, probability)
    return dropped


def scaled_mask(x: Tensor, probability: float) -> Tensor:
    """Return 0 or the scale for every element of ``x``, in its dtype."""
    words = torch.empty(-(-x.numel() // _DRAWS_PER_WORD), dtype=torch.int64)
    draws = words.random_(-(1 << 63), None).view(torch.int16)[: x.numel()].view(x.shape)
    dropped = min(round(probability * _LEVELS), _LEVELS - 1)
    scale = torch.tensor(_LEVELS / (_LEVELS - dropped), dtype=x.dtype).item()
    least = round(_LEVELS * (1 - 1 / scale)) - _LEVELS // 2
    if least == -_LEVELS // 2:
        return torch.ones_like(x)
    # 0 or 1. A comparison's bytes would take longer to convert to bfloat16 than the draws.
    mask = draws.clamp_(least - 1, least).sub_(least - 1)
    if x.dtype == torch.bfloat16:
        return mask.mul_(torch.tensor(scale, dtype=x.dtype).view(torch.int16)).view(x.dtype)
    return mask.to(x.dtype).mul_(scale)
