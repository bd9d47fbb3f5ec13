"""Attention by torch's FlashAttention kernel, which reads packed rows without padding.

Shape legend: T tokens of all rows, B rows, H heads, K width of a head.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Wider heads have no backward pass with dropout on consumer cards (8.6, 8.9, 12.0).
_WIDEST_HEAD = 192
_WIDTH_UNIT = 8
# Rows are the second dimension of the kernel's grid, which CUDA limits.
MOST_ROWS = (1 << 16) - 1


@cache
def reads_packed_rows(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Return whether the unpadded kernel is available.

    FlashAttention-2 (Dao, 2023) as torch ships it needs half precision and an NVIDIA card from
    Ampere (capability 8.0) on.
    """
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    built = torch.version.cuda is not None and torch.backends.cuda.is_flash_attention_available()
    return (
        built and head_width <= _WIDEST_HEAD and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def attend_packed(
    qkv_T3HK: Tensor, bounds: Tensor, longest: int, dropout: float, window: int | None
) -> Tensor:
    """Let every token attend to the tokens of its own row, shape ``(T, H, K)``; see `attend`.

    ``bounds`` are the starts of the rows and the end of the last one, int32; ``longest`` counts the
    tokens of the longest row.
    """
    width = qkv_T3HK.shape[-1]
    spare = -width % _WIDTH_UNIT
    # Trailing zeros add nothing to products of queries and keys, and stay zeros in values. The
    # scale is that of the true width.
    padded = F.pad(qkv_T3HK, (0, spare)) if spare else qkv_T3HK
    # The operator behind `torch.nn.attention.varlen`, which has no dropout and needs torch 2.10.
    # These arguments are the same from torch 2.5 on.
    output, *_ = torch.ops.aten._flash_attention_forward(
        *padded.unbind(1),
        bounds,
        bounds,
        longest,
        longest,
        dropout,
        False,
        False,
        scale=width**-0.5,
        window_size_left=window,
        window_size_right=window,
    )
    output_THK: Tensor = output[..., :width]
    return output_THK
