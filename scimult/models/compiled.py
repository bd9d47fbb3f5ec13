"""Feed-forward sub-layers compiled by ``torch.compile``."""

from __future__ import annotations

from torch import nn

from scimult.models.blocks import FeedForward
from scimult.models.encoder import Encoder
from scimult.models.modern import GatedFeedForward


def compile_feed_forwards(model: Encoder) -> int:
    """Have every feed-forward sub-layer compiled at its first use, for any number of tokens.

    Attention stays as it is: its groups have other shapes in every batch, and each new
    combination would be compiled again. Names of parameters do not change.

    Returns
    -------
    int
        How many sub-layers there are.
    """
    found: list[nn.Module] = [
        module for module in model.modules() if isinstance(module, (FeedForward, GatedFeedForward))
    ]
    for module in found:
        module.compile(dynamic=True)
    return len(found)
