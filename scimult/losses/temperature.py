"""A temperature that is learned with the encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """A trained positive number: ``initial * exp(log_ratio)``, with ``log_ratio`` 0 at first.

    CLIP (Radford et al., 2021, section 2.3) learns log(1 / temperature). Here the parameter
    starts at 0, around which bfloat16 is finest: the value of a bfloat16 run stays precise.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.log_ratio = nn.Parameter(torch.zeros(1))

    def forward(self) -> Tensor:
        """Return the temperature, shape ``(1,)``, in float32 at least."""
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        return self.initial * self.log_ratio.to(wide).exp()
