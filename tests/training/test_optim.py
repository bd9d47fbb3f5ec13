"""Schedules in closed form; AdamW that leaves unused experts alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from scimult.errors import UnknownNameError
from scimult.models import Encoder, EncoderConfig, variant_layouts
from scimult.training.optim import SHARED, RoutedAdamW, parameter_groups
from scimult.training.schedules import lr_factor, warmup_steps


def model(variant: str = "mha_expert") -> Encoder:
    encoder = Encoder(
        EncoderConfig(
            vocab_size=11,
            hidden_size=8,
            num_blocks=2,
            num_heads=2,
            intermediate_size=12,
            max_positions=8,
            **variant_layouts(variant, {}, 3, 2),
        )
    )
    encoder.initialise(0)
    return encoder


@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert", "mha_ffn_expert"])
def test_groups_hold_every_parameter_once(variant: str) -> None:
    encoder = model(variant)
    groups = parameter_groups(encoder, 0.1)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in encoder.parameters())
    names = {id(p): name for name, p in encoder.named_parameters()}
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            plain = name.endswith("bias") or "norm" in name
            assert group["weight_decay"] == (0.0 if plain else 0.1), name
            assert (group["expert"] == SHARED) == (f".experts.{group['expert']}." not in name), name
    expected = {SHARED} if variant == "vanilla" else {SHARED, 0, 1, 2}
    assert {group["expert"] for group in groups} == expected


def test_inactive_experts_stay_bit_identical_and_active_ones_follow_adamw() -> None:
    routed = model()
    plain = copy.deepcopy(routed)
    optimizer = RoutedAdamW(parameter_groups(routed, 0.1), lr=0.01)
    reference = torch.optim.AdamW(
        [{k: v for k, v in g.items() if k != "expert"} for g in parameter_groups(plain, 0.1)],
        lr=0.01,
    )
    generator = torch.Generator().manual_seed(0)
    for active in ({0}, {0, 2}, {2}, {0}):
        before = {name: p.detach().clone() for name, p in routed.named_parameters()}
        for (name, ours), theirs in zip(routed.named_parameters(), plain.parameters(), strict=True):
            inactive = [e for e in range(3) if e not in active]
            skipped = "blocks.1.attention" in name and any(
                f".experts.{e}." in name for e in inactive
            )
            gradient = torch.randn(ours.shape, generator=generator)
            # A sharded engine hands zeros to experts without rows; plain AdamW gets none.
            ours.grad = torch.zeros_like(ours) if skipped else gradient
            theirs.grad = None if skipped else gradient
        optimizer.active = frozenset(active)
        optimizer.step()
        reference.step()
        for (name, ours), theirs in zip(routed.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)
            if theirs.grad is None:
                assert torch.equal(ours, before[name]), name
    assert all(optimizer.state[p] for p in routed.parameters())


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("linear", 0, 1 / 10),
        ("linear", 9, 1.0),
        ("linear", 10, 1.0),
        ("linear", 55, 0.5),
        ("linear", 100, 0.0),
        ("cosine", 55, 0.5),
        ("cosine", 32, 0.5 * (1 + math.cos(math.pi * 22 / 90))),
        ("cosine", 100, 0.0),
        ("constant", 4, 0.5),
        ("constant", 99, 1.0),
    ],
)
def test_schedules_in_closed_form(name: str, step: int, expected: float) -> None:
    assert lr_factor(name, step, steps=100, warmup=10) == pytest.approx(expected)


def test_warmup_is_a_share_below_one_and_steps_above() -> None:
    assert warmup_steps(0.05, 1000) == 50
    assert warmup_steps(0.05, 10) == 1
    assert warmup_steps(700, 1000) == 700
    assert warmup_steps(0, 1000) == 0
    assert warmup_steps(700, 100) == 100


def test_unknown_schedule_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cosine'"):
        lr_factor("cosin", 0, 1, 0)
