"""Padded attention against a gather with padding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from scimult.models import attention
from scimult.models.packing import AttentionGroup, PackingPlan
from tests.models.variants import FLOAT64, random_weights
from tests.operators import CountOperators

CPU = torch.device("cpu")
# Groups with and without padding, of two routes.
LENGTHS = [50, 1, 47, 12, 12, 5, 300, 290, 7, 7]
ROUTES = [0, 1, 0, 1, 1, 0, 0, 0, 1, 1]


def _doubled(options: dict[str, Any]) -> dict[str, Any]:
    context = options["context"]
    doubled = context and {route: read.double() for route, read in context.items()}
    return {**options, "context": doubled}


def gathered(
    qkv_T3HK: Tensor, plan: PackingPlan, dropout: float, *, training: bool, window: int | None
) -> Tensor:
    """Attend after a gather in which padding reads the first token of its group."""
    outputs, start = [], 0
    for group in plan.groups:
        part = qkv_T3HK[start : start + group.num_tokens]
        start += group.num_tokens
        whole = AttentionGroup(0, len(part), group.rows, group.longest, None, group.mask_BL)
        places = torch.arange(group.rows * group.longest)
        if group.slots_T is not None:
            index = torch.zeros_like(places)
            index[group.slots_T] = torch.arange(group.num_tokens)
            part = part[index]
            places = group.slots_T
        mixed = attention._attend_group(part, whole, dropout, window, None)
        outputs.append(mixed[places])
    return torch.cat(outputs)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("window", [None, 3, 40])
def test_copies_by_index_are_a_gather_with_padding(window: int | None, dropout: float) -> None:
    weights = random_weights(sum(LENGTHS), 2, 8)
    found = []
    for attend in (attention.attend, gathered):
        generator = torch.Generator().manual_seed(0)
        qkv = torch.randn(sum(LENGTHS), 3, 2, 8, dtype=torch.float64, generator=generator)
        qkv.requires_grad_()
        plan = PackingPlan.build(LENGTHS, ROUTES, CPU)
        torch.manual_seed(1)
        output = attend(qkv, plan, dropout, training=True, window=window)
        (output * weights).sum().backward()
        found.append((output, qkv.grad))
    (ours, our_gradient), (expected, gradient) = found
    assert (ours - expected).abs().max() <= FLOAT64
    assert our_gradient is not None
    assert gradient is not None
    assert (our_gradient - gradient).abs().max() <= FLOAT64


@pytest.mark.parametrize(
    ("window", "contexts"), [(None, False), (None, True), (3, False), (40, False)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_training_rows_attend_alone_and_as_before(
    dtype: torch.dtype, window: int | None, contexts: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3, 2, 8, dtype=torch.float64, generator=generator).to(dtype)
    read = torch.randn(2, 4, 2, 2, 8, dtype=torch.float64, generator=generator).to(dtype)
    context = dict(enumerate(read)) if contexts else None
    plan = PackingPlan.build(LENGTHS, ROUTES, CPU)
    options = {"window": window, "context": context}
    found = attention.attend(qkv, plan, 0.0, training=False, **options)
    expected = attention.attend(qkv.double(), plan, 0.0, training=True, **_doubled(options))
    # bfloat16 rounds scores and weights to 8 bits, of values up to 4.
    limit = {torch.float64: FLOAT64, torch.float32: 2e-6, torch.bfloat16: 4e-2}[dtype]
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= limit
    # No row depends on others: alone, each gives the same numbers.
    starts = plan.bounds.tolist()
    for row, (start, stop) in enumerate(pairwise(starts)):
        alone = PackingPlan.build([stop - start], int(plan.routes[row]), CPU)
        single = attention.attend(qkv[start:stop], alone, 0.0, training=False, **options)
        assert (single.double() - found[start:stop].double()).abs().max() <= limit


def test_nothing_is_sorted_or_summed_at_one_index() -> None:
    """A gather's gradient is `index_put`, which CUDA sorts; a slice's is as large as all tokens."""
    plan = PackingPlan.build(LENGTHS, ROUTES, CPU)
    qkv = torch.randn(sum(LENGTHS), 3, 2, 8, requires_grad=True)
    with CountOperators() as counted:
        attention.attend(qkv, plan, 0.1, training=True).sum().backward()
    padded = sum(group.slots_T is not None for group in plan.groups)
    assert 0 < padded < len(plan.groups)
    # As functions where torch traces, in place elsewhere.
    assert counted.calls["index_copy_"] + counted.calls["index_copy"] == padded
    assert counted.calls["index_add_"] + counted.calls["index_add"] == padded
    refused = ("index", "index_put_", "_index_put_impl_", "slice_backward")
    assert {name: counted.calls[name] for name in refused if counted.calls[name]} == {}
