"""Attention as the encoder calls it: errors against float64, dropout, and speed.

Shape legend: T tokens of all rows, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_day.day import Day
from benchmarks.timing import median_seconds
from scimult.models.attention import attend
from scimult.models.packed_attention import attend_packed, reads_packed_rows
from scimult.models.packing import PackingPlan
from scimult.models.short_attention import reads_short_rows

# Head widths of PALs, TinyBERT, MiniLM and BERT, and some that no kernel supports.
_WIDTHS = (17, 26, 32, 64, 96, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WINDOWS = (None, 64)
_LENGTHS = (1, 2, 17, 205, 128, 129, 512, 300, 64, 3)
_HEADS = 4
# A single wrong token is far above it; bfloat16 has 8 bits, float16 11, float32 24.
TOLERANCE = {"bfloat16": 0.02, "float16": 0.002, "float32": 1e-5}
_KEEP_WITHIN = 0.02
# Rows, and the tokens of the shortest and longest.
_BATCHES = {"papers": (280, 8, 400), "titles": (2300, 5, 40)}


def errors(day: Day, step: str) -> None:
    """Report errors of output and gradient relative to float64, by width, type and window."""
    device = torch.device(day.device)
    plan = PackingPlan.build(_LENGTHS, 0, device)
    wrong = []
    for width, dtype, window in product(day.size(_WIDTHS, (17, 32)), _DTYPES, _WINDOWS):
        name = str(dtype).removeprefix("torch.")
        case = {"width": width, "dtype": name, "window": window}
        short = window is None and reads_short_rows(device, dtype, width)
        packed = "FlashAttention" if reads_packed_rows(device, dtype, width) else "padded"
        case["kernel"] = "short rows" if short else packed
        try:
            output, gradient = _against_float64(plan, width, dtype, window, device)
        except RuntimeError as error:
            day.note(step, **case, failed=str(error).partition("\n")[0][:200])
            wrong.append(case)
            continue
        day.note(step, **case, output_error=output, gradient_error=gradient)
        if not max(output, gradient) <= TOLERANCE[name]:
            wrong.append(case)
    if wrong:
        raise SystemExit(f"{len(wrong)} cases of attention fail or are too inaccurate: {wrong}")


def _against_float64(
    plan: PackingPlan, width: int, dtype: torch.dtype, window: int | None, device: torch.device
) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(width)
    exact = torch.randn(sum(_LENGTHS), 3, _HEADS, width, generator=generator, dtype=torch.float64)
    low = exact.to(device, dtype).requires_grad_()
    high = low.detach().double().requires_grad_()
    output = attend(low, plan, 0.0, training=True, window=window)
    expected = attend(high, plan, 0.0, training=True, window=window)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64).to(device)
    torch.autograd.backward((output.double() * weights).sum())
    torch.autograd.backward((expected * weights).sum())
    return _error(output, expected), _error(low.grad, high.grad)


def _error(actual: Tensor | None, expected: Tensor | None) -> float:
    assert actual is not None
    assert expected is not None
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm())


def dropout(day: Day, step: str) -> None:
    """Check dropout of attention weights: its seed, its mean, and that gradients use its mask.

    For a fixed mask the output is linear in the values, so its product with any weights equals
    that of the values and their gradient.
    """
    device = torch.device(day.device)
    plan = PackingPlan.build(_LENGTHS, 0, device)
    torch.manual_seed(0)
    qkv = torch.randn(sum(_LENGTHS), 3, _HEADS, 64, device=device).bfloat16()
    qkv[:, 2] += 1
    qkv.requires_grad_()

    def attend_with(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(qkv, plan, 0.1, training=True)

    once = attend_with(1)
    weights = torch.randn_like(once)
    torch.autograd.backward((once.float() * weights.float()).sum())
    assert qkv.grad is not None
    gradient, qkv = qkv.grad, qkv.detach()
    once, again, other = once.detach(), attend_with(1), attend_with(2)
    expected = float((once.double() * weights.double()).sum())
    through = float((gradient[:, 2].double() * qkv[:, 2].double()).sum())
    scale = float((once.double() * weights.double()).norm()) * np.sqrt(once.numel())
    undropped = attend(qkv, plan, 0.0, training=False)
    facts = {
        "same_seed_same_mask": bool(torch.equal(once, again)),
        "other_seed_other_mask": not bool(torch.equal(once, other)),
        "mean_over_undropped": float(once.double().mean() / undropped.double().mean()),
        "gradient_identity_error": abs(expected - through) / scale,
        "finite": bool(gradient.isfinite().all()),
    }
    day.note(step, **facts)
    sound = facts["same_seed_same_mask"] and facts["other_seed_other_mask"] and facts["finite"]
    near = abs(facts["mean_over_undropped"] - 1) < _KEEP_WITHIN
    if not (sound and near and facts["gradient_identity_error"] < TOLERANCE["bfloat16"]):
        raise SystemExit(f"dropout of attention is wrong: {facts}")


def speed(day: Day, step: str) -> None:
    """Report milliseconds of attention, both passes, as the encoder calls it and by FlashAttention.

    At BERT's and MiniLM's widths. Operations are those of the products, counting each pair of a
    row's tokens once; the backward pass has five products, the forward pass two.
    """
    device = torch.device(day.device)
    rng = np.random.default_rng(0)
    for (batch, (rows, least, most)), width, probability in product(
        _BATCHES.items(), (64, 32), (0.0, 0.1)
    ):
        lengths = rng.integers(least, most, day.size(rows, 2)).tolist()
        plan = PackingPlan.build(lengths, 0, device)
        qkv = torch.randn(sum(lengths), 3, 12, width, device=device).bfloat16().requires_grad_()
        ways = {"ours": partial(attend, qkv, plan, probability, training=True)}
        if reads_packed_rows(device, qkv.dtype, width):
            bounds, longest = plan.bounds, plan.longest
            ways["flash"] = partial(attend_packed, qkv, bounds, longest, probability, None)
        seconds = {
            name: median_seconds(partial(_both_ways, qkv, way), device, day.size(20, 2))
            for name, way in ways.items()
        }
        operations = 7 * 2 * 12 * width * sum(length**2 for length in lengths)
        day.note(
            step,
            batch=batch,
            width=width,
            dropout=probability,
            tokens=sum(lengths),
            **{f"{name}_ms": round(value * 1e3, 3) for name, value in seconds.items()},
            tflops=float(f"{operations / seconds['ours'] / 1e12:.3g}"),
        )


def _both_ways(qkv: Tensor, way: Callable[[], Tensor]) -> None:
    output = way()
    output.backward(output.detach())  # type: ignore[no-untyped-call]
    qkv.grad = None
