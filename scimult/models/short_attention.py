"""Attention within packed rows that are mostly short, by kernels of our own in Triton.

FlashAttention reads rows in tiles of 128 tokens, adds up the queries' gradients atomically, and
leaves it to others to join the gradients. Here rows are launched by length, in tiles that fit.

Shape legend: T tokens of all rows, B rows, R rows of one class, H heads, K width of a head.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scimult.hardware import may_compile_kernels, send
from scimult.progress import warn

if TYPE_CHECKING:
    from scimult.types import IntArray

# At 128 the backward pass would spill registers.
_WIDTHS = (16, 32, 64)
# Longer rows are left to FlashAttention: here one program would work through each of their heads.
LONGEST = 1024
# A class with a smaller share of the tokens joins the next: each launch takes the host a moment.
_LEAST_SHARE = 1 / 16
# log2(e): the kernels use powers of 2.
_LOG2_E = 1.4426950408889634
_DRAWS = 1 << 24


@dataclass(frozen=True)
class Tiles:
    """How a class of rows is cut: queries and keys of a tile, and a program's warps and stages.

    ``single`` says that one tile holds all keys of a row; ``registers`` limits those of a thread.
    """

    queries: int
    keys: int
    single: bool
    warps: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True)
class LengthClass:
    """Rows up to some length, and how both passes cut them."""

    longest: int
    forward: Tiles
    backward: Tiles


CLASSES = (
    LengthClass(16, Tiles(16, 16, True, 1, 1), Tiles(16, 16, True, 1, 1)),
    LengthClass(32, Tiles(32, 32, True, 2, 1), Tiles(32, 32, True, 2, 1)),
    LengthClass(64, Tiles(64, 64, True, 4, 1), Tiles(64, 64, True, 4, 1)),
    LengthClass(128, Tiles(64, 128, True, 4, 1, 128), Tiles(32, 128, True, 8, 3, 128)),
    LengthClass(LONGEST, Tiles(64, 64, False, 4, 3, 128), Tiles(32, 64, False, 4, 3, 168)),
)

# Rows of each class that has any: start and length, int32 of shape ``(R, 2)``.
Tables = list[tuple[LengthClass, Tensor]]


@cache
def reads_short_rows(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Return whether the kernels are available: half precision, an NVIDIA card of 8.0 on."""
    half = dtype in (torch.float16, torch.bfloat16)
    fits = half and head_width in _WIDTHS and may_compile_kernels(device)
    return fits and _starts(device, dtype, head_width)


def _starts(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Attend within a row of one token: Triton compiles for each machine, which may fail."""

    def attend_one_token() -> float:
        qkv_T3HK = torch.zeros(1, 3, 1, head_width, device=device, dtype=dtype)
        row_THK = attend_short(qkv_T3HK.requires_grad_(), tables(np.array([1]), device))
        return float(torch.autograd.grad(row_THK.sum(), qkv_T3HK)[0].sum())

    try:
        # In a thread of its own, recomputation and inference modes around this call do not count.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(attend_one_token).result()
    # A missing compiler, missing headers, a full disk: each has an exception of its own.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        warn(
            f"texts of up to {LONGEST} tokens get slower attention: Triton failed ({reason}); it "
            "needs a C compiler, Python's headers (python3-dev) and a home folder that is writable"
        )
        return False
    return True


def tables(lengths: IntArray, device: torch.device | str) -> Tables:
    """Return the rows of each class, longest first, so that no long one starts last."""
    lengths_B = np.asarray(lengths, dtype=np.int64)
    starts_B = np.cumsum(lengths_B) - lengths_B
    order_B = np.argsort(-lengths_B, kind="stable")
    sorted_B = lengths_B[order_B]
    classes, arrays, shortest = [], [], 1
    for kind in CLASSES:
        rows_R = order_B[(sorted_B >= shortest) & (sorted_B <= kind.longest)]
        few = lengths_B[rows_R].sum() < _LEAST_SHARE * lengths_B.sum()
        if not len(rows_R) or (few and kind is not CLASSES[-1]):
            continue
        classes.append(kind)
        arrays.append(np.stack([starts_B[rows_R], lengths_B[rows_R]], 1).astype(np.int32))
        shortest = kind.longest + 1
    sent = send([torch.from_numpy(array) for array in arrays], device) if arrays else []
    # Long rows take longest: their last programs finish beside the next class's.
    return list(zip(classes, sent, strict=True))[::-1]


def attend_short(qkv_T3HK: Tensor, rows: Tables, dropout: float = 0.0) -> Tensor:
    """Let every token attend to the tokens of its own row, shape ``(T, H, K)``.

    Parameters
    ----------
    qkv_T3HK : Tensor
        Queries, keys and values of the packed tokens, shape ``(T, 3, H, K)``.
    rows : Tables
        Every row, none longer than ``LONGEST``; see `tables`.
    dropout : float
        Dropout probability on the attention weights.
    """
    output_THK: Tensor = _ShortAttention.apply(qkv_T3HK, rows, dropout)  # type: ignore[no-untyped-call,unused-ignore]
    return output_THK


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_T3HK: Tensor, rows: Tables, dropout: float) -> Tensor:
        qkv_T3HK = qkv_T3HK.contiguous()
        tokens, _, heads, width = qkv_T3HK.shape
        output_THK = qkv_T3HK.new_empty(tokens, heads, width)
        # Its second half is the backward pass's.
        lse_2HT = qkv_T3HK.new_empty(2, heads, tokens, dtype=torch.float32)
        # Drawn on the device: the host need not wait for it.
        seed = torch.randint(1 << 62, (1,), device=qkv_T3HK.device) if dropout else lse_2HT
        ctx.rows, ctx.dropout = rows, dropout
        ctx.save_for_backward(qkv_T3HK, output_THK, lse_2HT, seed)
        _launch("forward", rows, (qkv_T3HK, output_THK, lse_2HT), seed, dropout)
        return output_THK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        qkv_T3HK, output_THK, lse_2HT, seed = ctx.saved_tensors
        grad_T3HK = torch.empty_like(qkv_T3HK)
        single = all(kind.backward.single for kind, _ in ctx.rows)
        sums_THK = (
            lse_2HT if single else output_THK.new_empty(output_THK.shape, dtype=torch.float32)
        )
        tensors = (qkv_T3HK, output_THK, gradients[0].contiguous(), lse_2HT, grad_T3HK, sums_THK)
        _launch("backward", ctx.rows, tensors, seed, ctx.dropout)
        return grad_T3HK, None, None


def _launch(
    which: str, rows: Tables, tensors: tuple[Tensor, ...], seed: Tensor, dropout: float
) -> None:
    # Triton takes a moment to import, and not every installation has it.
    from scimult.models import short_kernels

    kernel = getattr(short_kernels, which)
    tokens, _, heads, width = tensors[0].shape  # of queries, keys and values
    numbers = (
        tokens,
        width**-0.5 * _LOG2_E,
        round(dropout * _DRAWS),
        # The forward pass of a probability of 1 is zero, not NaN.
        1 / (1 - dropout) if dropout < 1 else 0.0,
    )
    # Triton launches on the current device, whatever the tensors' is.
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        for kind, table in rows:
            cut: Tiles = getattr(kind, which)
            kernel[(len(table) * heads,)](
                *tensors, table, seed, *numbers,
                HEADS=heads, WIDTH=width, M=cut.queries, N=cut.keys,
                SINGLE=cut.single, DROPOUT=dropout > 0,
                num_warps=cut.warps, num_stages=cut.stages, maxnreg=cut.registers,
            )  # fmt: skip
