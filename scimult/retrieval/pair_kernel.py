"""A Triton kernel for products of listed pairs of vectors; `Vectors.products_of` runs it.

One program multiplies one pair, so a product depends on its two vectors alone.
"""
# Triton reads annotations and upper-case parameters: they are compile-time constants.
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 1 << 13
"""Numbers of a vector that one program holds."""

# Numbers that a warp holds without spilling.
_OF_WARP = 1 << 11


@triton.jit
def _multiply(vectors, queries, bias, rows, places, out, D: tl.constexpr, N: tl.constexpr):
    pair = tl.program_id(0)
    row, place = tl.load(rows + pair).to(tl.int64), tl.load(places + pair).to(tl.int64)
    at = tl.arange(0, N)
    x = tl.load(vectors + row * D + at, mask=at < D, other=0.0)
    y = tl.load(queries + place * D + at, mask=at < D, other=0.0)
    product = tl.sum(x * y, axis=0)
    if bias is not None:
        product += tl.load(bias + row)
    tl.store(out + pair, product)


def products_of_pairs(
    vectors_CD: Tensor, bias_C: Tensor | None, queries_QD: Tensor, query_P: Tensor, rows_P: Tensor
) -> Tensor:
    """Return float32 products, with the bias of their rows, shape ``(P,)``.

    All tensors are contiguous and on one CUDA device; D is at most ``LONGEST``.
    """
    products_P = torch.empty(len(rows_P), dtype=torch.float32, device=vectors_CD.device)
    if not len(rows_P):
        return products_P
    width = vectors_CD.shape[1]
    padded = triton.next_power_of_2(width)
    # Triton launches on the current device, whatever the tensors' is.
    with torch.cuda.device_of(vectors_CD):
        _multiply[(len(rows_P),)](
            vectors_CD, queries_QD, bias_C, rows_P, query_P, products_P,
            D=width, N=padded, num_warps=max(1, padded // _OF_WARP),
        )  # fmt: skip
    return products_P
