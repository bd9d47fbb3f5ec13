"""Our dropout against its definition."""

from __future__ import annotations

import pytest
import torch

from scimult.models.dropout import apply_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_share_and_scale_of_kept_elements(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(401, 503, dtype=dtype)
    dropped = apply_dropout(x, probability)
    kept = dropped != 0
    # 200,000 draws: five standard deviations are below 0.006.
    assert kept.double().mean() == pytest.approx(1 - probability, abs=0.006)
    # In each row and column, too: no pattern repeats along a dimension.
    for dim in (0, 1):
        assert kept.double().mean(dim).std() < 0.04
    scale = float(dropped[kept].double().unique())
    # The probability is rounded to 2**-16, the scale to bfloat16's 8 bits.
    assert scale == pytest.approx(1 / (1 - probability), rel=4e-3 if x.itemsize == 2 else 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("probability", "kept"), [(2**-18, 1.0), (1 - 2**-18, 2**-16)])
def test_probabilities_that_no_draw_tells_from_0_or_1(
    probability: float, kept: float, dtype: torch.dtype
) -> None:
    """All elements stay as they are, or one of 2**16, as the largest scale has it."""
    torch.manual_seed(0)
    x = torch.ones(1 << 21, dtype=dtype)
    dropped = apply_dropout(x, probability)
    assert (dropped != 0).double().mean() == pytest.approx(kept, abs=1.2e-5 * (1 - kept))
    assert dropped.unique().tolist() == ([1.0] if kept == 1 else [0.0, 1 / kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.15, 0.3, 0.45])
def test_the_mean_stays(probability: float, dtype: torch.dtype) -> None:
    """Within four standard deviations; 1 / 0.9 rounded to bfloat16 would be six below."""
    torch.manual_seed(1)
    draws = 1 << 22
    mean = float(apply_dropout(torch.ones(draws, dtype=dtype), probability).double().mean())
    deviation = (probability / (1 - probability) / draws) ** 0.5
    assert abs(mean - 1) <= 4 * deviation + 2**-16


def test_gradient_passes_where_values_pass() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 13, requires_grad=True)
    dropped = apply_dropout(x, 0.3)
    torch.autograd.backward(dropped.sum())
    assert x.grad is not None
    assert torch.equal(x.grad * x.detach(), dropped.detach())
    assert 0 < int((x.grad == 0).sum()) < x.numel()


def test_masks_follow_the_seed_and_differ_between_calls() -> None:
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = apply_dropout(x, 0.5), apply_dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(apply_dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    assert torch.equal(apply_dropout(x, 0.5, training=False), x)
