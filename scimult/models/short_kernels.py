"""Triton kernels of self-attention within packed rows; `short_attention` runs them.

One program handles one head of one row. The backward pass needs no atomic additions, and writes
the gradients of queries, keys and values into one tensor. Rows are up to N tokens long if SINGLE.

Shape legend: M queries and N keys of a tile, K width of a head.
"""
# Triton reads annotations and upper-case parameters: they are compile-time constants.
# mypy: ignore-errors
# ruff: noqa: C901, PLR0915

import triton
import triton.language as tl

_VARYING = ["tokens", "threshold", "scale", "rescale"]


@triton.jit
def _tile(base, first, length, STRIDE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Load a tile of vectors; those past the row's end are zeros."""
    at = first + tl.arange(0, SIZE)
    where = at[:, None] * STRIDE + tl.arange(0, WIDTH)[None, :]
    return tl.load(base + where, mask=at[:, None] < length, other=0.0)


@triton.jit
def _store(base, x, first, length, STRIDE: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    at = first + tl.arange(0, SIZE)
    where = at[:, None] * STRIDE + tl.arange(0, WIDTH)[None, :]
    tl.store(base + where, x.to(base.dtype.element_ty), mask=at[:, None] < length)


@triton.jit
def _mix(x):
    """Return 32 bits that each depend on all bits of ``x``, by the constants of lowbias32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _draw_queries(seed, first_token, head, SIZE: tl.constexpr):
    """Return 32 random bits per query, by its place among all tokens."""
    words = tl.load(seed)
    at = (first_token + tl.arange(0, SIZE)).to(tl.uint32)
    bits = _mix(at ^ words.to(tl.uint32)) ^ (words >> 32).to(tl.uint32)
    return _mix(bits + (head + 1).to(tl.uint32) * 0x85EBCA77)


@triton.jit
def _kept(queries, keys, threshold):
    """Return which weights dropout keeps, by one hash each: Philox takes far longer."""
    return (_mix(queries + keys.to(tl.uint32) * 0x9E3779B1) >> 8).to(tl.int32) >= threshold


@triton.jit(do_not_specialize=_VARYING)
def forward(
    qkv, out, lse, rows, seed, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SINGLE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Write the output and the binary logarithms of the sums of exponentials, ``(H, T)``."""
    STRIDE: tl.constexpr = 3 * HEADS * WIDTH
    row = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    # 64 bits: there may be more than 2^31 numbers in the batch, but not in a row.
    start = tl.load(rows + 2 * row).to(tl.int64)
    length = tl.load(rows + 2 * row + 1)
    q_base = qkv + start * STRIDE + head * WIDTH
    k_base = q_base + HEADS * WIDTH
    v_base = k_base + HEADS * WIDTH
    out_base = out + start * (HEADS * WIDTH) + head * WIDTH
    lse_base = lse + head.to(tl.int64) * tokens + start
    keys_N = tl.arange(0, N)
    if SINGLE:
        k_NK = _tile(k_base, 0, length, STRIDE, N, WIDTH)
        v_NK = _tile(v_base, 0, length, STRIDE, N, WIDTH)
    for first in range(0, M if SINGLE and M == N else length, M):
        q_MK = _tile(q_base, first, length, STRIDE, M, WIDTH)
        if DROPOUT:
            bits_M = _draw_queries(seed, start + first, head, M)
        if SINGLE:
            scores_MN = tl.dot(q_MK, tl.trans(k_NK)) * scale
            scores_MN = tl.where(keys_N[None, :] < length, scores_MN, float("-inf"))
            top_M = tl.max(scores_MN, 1)
            weights_MN = tl.exp2(scores_MN - top_M[:, None])
            sum_M = tl.sum(weights_MN, 1)
            if DROPOUT:
                is_kept_MN = _kept(bits_M[:, None], keys_N[None, :], threshold)
                weights_MN = tl.where(is_kept_MN, weights_MN, 0.0)
            mixed_MK = tl.dot(weights_MN.to(v_NK.dtype), v_NK)
        else:
            top_M = tl.full([M], float("-inf"), tl.float32)
            sum_M = tl.zeros([M], tl.float32)
            mixed_MK = tl.zeros([M, WIDTH], tl.float32)
            for first_key in range(0, length, N):
                k_NK = _tile(k_base, first_key, length, STRIDE, N, WIDTH)
                v_NK = _tile(v_base, first_key, length, STRIDE, N, WIDTH)
                scores_MN = tl.dot(q_MK, tl.trans(k_NK)) * scale
                real_N = first_key + keys_N < length
                scores_MN = tl.where(real_N[None, :], scores_MN, float("-inf"))
                new_top_M = tl.maximum(top_M, tl.max(scores_MN, 1))
                weights_MN = tl.exp2(scores_MN - new_top_M[:, None])
                fade_M = tl.exp2(top_M - new_top_M)
                sum_M = sum_M * fade_M + tl.sum(weights_MN, 1)
                if DROPOUT:
                    is_kept_MN = _kept(bits_M[:, None], (first_key + keys_N)[None, :], threshold)
                    weights_MN = tl.where(is_kept_MN, weights_MN, 0.0)
                mixed_MK = mixed_MK * fade_M[:, None]
                mixed_MK = tl.dot(weights_MN.to(v_NK.dtype), v_NK, mixed_MK)
                top_M = new_top_M
        mixed_MK = mixed_MK * (rescale / sum_M)[:, None]
        _store(out_base, mixed_MK, first, length, HEADS * WIDTH, M, WIDTH)
        at_M = first + tl.arange(0, M)
        tl.store(lse_base + at_M, top_M + tl.log2(sum_M), mask=at_M < length)


@triton.jit(do_not_specialize=_VARYING)
def backward(
    qkv, out, grad, lse, grad_qkv, grad_q, rows, seed, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SINGLE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Write the gradient of ``qkv``.

    ``grad_q`` (float32) and the second half of ``lse`` are scratch, unused if SINGLE.

    Scores are computed with keys first: weights and their gradients then are operands of the
    products for keys and values in the registers where they are made.
    """
    STRIDE: tl.constexpr = 3 * HEADS * WIDTH
    OUT_STRIDE: tl.constexpr = HEADS * WIDTH
    row = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    start = tl.load(rows + 2 * row).to(tl.int64)
    length = tl.load(rows + 2 * row + 1)
    q_base = qkv + start * STRIDE + head * WIDTH
    k_base = q_base + HEADS * WIDTH
    v_base = k_base + HEADS * WIDTH
    grad_q_base = grad_qkv + start * STRIDE + head * WIDTH
    grad_k_base = grad_q_base + HEADS * WIDTH
    grad_v_base = grad_k_base + HEADS * WIDTH
    out_base = out + start * OUT_STRIDE + head * WIDTH
    grad_base = grad + start * OUT_STRIDE + head * WIDTH
    part_base = grad_q + start * OUT_STRIDE + head * WIDTH
    lse_base = lse + head.to(tl.int64) * tokens + start
    mean_base = lse_base + HEADS * tokens.to(tl.int64)
    if not SINGLE:
        # The means of the weights' gradients, over all keys.
        for first in range(0, length, M):
            at_M = first + tl.arange(0, M)
            o_MK = _tile(out_base, first, length, OUT_STRIDE, M, WIDTH).to(tl.float32)
            g_MK = _tile(grad_base, first, length, OUT_STRIDE, M, WIDTH).to(tl.float32)
            tl.store(mean_base + at_M, tl.sum(o_MK * g_MK, 1), mask=at_M < length)
        # Another thread may read a number than wrote it; so below.
        tl.debug_barrier()
    factor = scale * 0.6931471805599453
    for first_key in range(0, N if SINGLE else length, N):
        keys_N = first_key + tl.arange(0, N)
        k_NK = _tile(k_base, first_key, length, STRIDE, N, WIDTH)
        v_NK = _tile(v_base, first_key, length, STRIDE, N, WIDTH)
        grad_k_NK = tl.zeros([N, WIDTH], tl.float32)
        grad_v_NK = tl.zeros([N, WIDTH], tl.float32)
        for first in range(0, M if SINGLE and M == N else length, M):
            at_M = first + tl.arange(0, M)
            q_MK = _tile(q_base, first, length, STRIDE, M, WIDTH)
            g_MK = _tile(grad_base, first, length, OUT_STRIDE, M, WIDTH)
            # Queries past the end get no weights at all.
            lse_M = tl.load(lse_base + at_M, mask=at_M < length, other=float("inf"))
            scores_NM = tl.dot(k_NK, tl.trans(q_MK)) * scale
            weights_NM = tl.exp2(scores_NM - lse_M[None, :])
            weights_NM = tl.where(keys_N[:, None] < length, weights_NM, 0.0)
            grad_weights_NM = tl.dot(v_NK, tl.trans(g_MK))
            dropped_NM = weights_NM
            if DROPOUT:
                bits_M = _draw_queries(seed, start + first, head, M)
                is_kept_NM = _kept(bits_M[None, :], keys_N[:, None], threshold)
                dropped_NM = tl.where(is_kept_NM, weights_NM * rescale, 0.0)
                grad_weights_NM = tl.where(is_kept_NM, grad_weights_NM * rescale, 0.0)
            grad_v_NK = tl.dot(dropped_NM.to(g_MK.dtype), g_MK, grad_v_NK)
            if SINGLE:
                mean_M = tl.sum(weights_NM * grad_weights_NM, 0)
            else:
                mean_M = tl.load(mean_base + at_M, mask=at_M < length, other=0.0)
            grad_scores_NM = (weights_NM * (grad_weights_NM - mean_M[None, :])).to(q_MK.dtype)
            grad_k_NK = tl.dot(grad_scores_NM, q_MK, grad_k_NK)
            grad_q_MK = tl.dot(tl.trans(grad_scores_NM), k_NK) * factor
            if SINGLE:
                _store(grad_q_base, grad_q_MK, first, length, STRIDE, M, WIDTH)
            else:
                # Sums over the key tiles go through memory, which is this program's alone.
                if first_key > 0:
                    grad_q_MK += _tile(part_base, first, length, OUT_STRIDE, M, WIDTH)
                if first_key + N >= length:
                    _store(grad_q_base, grad_q_MK, first, length, STRIDE, M, WIDTH)
                else:
                    _store(part_base, grad_q_MK, first, length, OUT_STRIDE, M, WIDTH)
        _store(grad_k_base, grad_k_NK * factor, first_key, length, STRIDE, N, WIDTH)
        _store(grad_v_base, grad_v_NK, first_key, length, STRIDE, N, WIDTH)
        if not SINGLE:
            tl.debug_barrier()
