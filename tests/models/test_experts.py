"""Routing: each row runs through its own task's layers, and no others."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from scimult.checkpoints.warm_start import warm_start
from scimult.errors import CheckpointError, SciMultError
from scimult.models import Encoder, pack, variant_layouts
from tests.models.variants import FLOAT64, WIDTH, random_weights, tiny_config

EXPERTS = ["mha_expert", "ffn_expert", "mha_ffn_expert"]
LENGTHS = (9, 3, 30, 17, 17, 1, 24, 8)
ROUTES = (2, 0, 1, 1, 2, 0, 0, 2)


def encoder(variant: str, seed: int = 0) -> Encoder:
    model = Encoder(tiny_config(variant)).double()
    model.initialise(seed)
    return model


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 50, size=length) for length in LENGTHS]


def single_task(model: Encoder, expert: int) -> Encoder:
    """Build a vanilla encoder by hand from the shared weights and those of one expert."""
    source = model.state_dict()
    vanilla = Encoder(tiny_config("vanilla")).double()
    weights = {}
    for key in vanilla.state_dict():
        own = key.replace(".experts.0.", f".experts.{expert}.")
        weights[key] = source.get(own, source[key])
    vanilla.load_state_dict(weights)
    return vanilla


@pytest.mark.parametrize("variant", EXPERTS)
def test_identical_experts_equal_vanilla(variant: str) -> None:
    vanilla = encoder("vanilla")
    routed = Encoder(tiny_config(variant)).double()
    warm_start(routed, vanilla.state_dict())
    expected = vanilla(pack(rows()))
    for expert in range(3):
        # The same products in the same order: bit-equal.
        assert torch.equal(routed(pack(rows()), expert), expected)
    # Slices change how the products are blocked: last bits may differ.
    torch.testing.assert_close(routed(pack(rows()), ROUTES), expected, rtol=0, atol=FLOAT64)


@pytest.mark.parametrize("variant", EXPERTS)
@pytest.mark.parametrize("routes", [ROUTES, 0, 1, 2])
def test_each_row_equals_a_hand_built_single_task_model(
    variant: str, routes: tuple[int, ...] | int
) -> None:
    model = encoder(variant)
    embedded = model(pack(rows()), routes)
    per_row = [routes] * len(LENGTHS) if isinstance(routes, int) else routes
    for i, (row, expert) in enumerate(zip(rows(), per_row, strict=True)):
        alone = single_task(model, expert)(pack([row]))[0]
        torch.testing.assert_close(embedded[i], alone, rtol=0, atol=FLOAT64)


@pytest.mark.parametrize("variant", EXPERTS)
def test_only_the_routed_expert_gets_a_gradient(variant: str) -> None:
    model = encoder(variant)
    model(pack(rows()), 1).sum().backward()
    for name, parameter in model.named_parameters():
        other = ".experts.0." in name or ".experts.2." in name
        shared = name.replace(".experts.0.", ".experts.1.") not in model.state_dict()
        assert (parameter.grad is None) == (other and not shared), name


@pytest.mark.parametrize("variant", EXPERTS)
def test_mixed_batch_gives_the_gradients_of_separate_ones(variant: str) -> None:
    mixed = encoder(variant)
    separate = copy.deepcopy(mixed)
    weights = random_weights(len(LENGTHS), WIDTH)
    (mixed(pack(rows()), ROUTES) * weights).sum().backward()
    for row, expert, weight in zip(rows(), ROUTES, weights, strict=True):
        (separate(pack([row]), expert)[0] * weight).sum().backward()
    for (name, one), other in zip(mixed.named_parameters(), separate.parameters(), strict=True):
        scale = max(1.0, float(other.grad.abs().max()))
        assert (one.grad - other.grad).abs().max() <= FLOAT64 * scale, name


def test_experts_sit_in_the_blocks_of_the_released_model() -> None:
    layout = variant_layouts("mha_expert", {}, 3, 12)["experts"]
    assert layout.blocks == [1, 3, 5, 7, 9, 11]
    names = Encoder(tiny_config("mha_expert")).state_dict()
    # Q, K, V and output per expert; one LayerNorm for all; the feed-forward is shared.
    assert "blocks.1.attention.qkv.experts.2.weight" in names
    assert "blocks.1.attention.output.experts.2.bias" in names
    assert "blocks.1.attention.norm.weight" in names
    assert "blocks.1.feed_forward.experts.1.intermediate.weight" not in names
    assert "blocks.0.attention.qkv.experts.1.weight" not in names
    names = Encoder(tiny_config("ffn_expert")).state_dict()
    assert "blocks.3.feed_forward.experts.2.norm.weight" in names


@pytest.mark.parametrize(
    ("variant", "parameters"),
    # The released models' counts with the unused pooler (768 * 769 weights), which we drop.
    [("vanilla", 109_482_240 - 590_592), ("mha_expert", 137_830_656 - 590_592)],
)
def test_parameter_counts_equal_the_released_models(variant: str, parameters: int) -> None:
    sizes = tiny_config(
        variant,
        vocab_size=30522,
        hidden_size=768,
        num_blocks=12,
        num_heads=12,
        intermediate_size=3072,
        max_positions=512,
        **variant_layouts(variant, {}, 3, 12),
    )
    with torch.device("meta"):
        model = Encoder(sizes)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("blocks", "chosen"),
    [
        ("every:2", [1, 3, 5]),
        ("every:3", [2, 5]),
        ("first:2", [0, 1]),
        ("last:2", [4, 5]),
        ([5, 0], [0, 5]),
    ],
)
def test_expert_blocks_are_configuration(blocks: str | list[int], chosen: list[int]) -> None:
    layout = variant_layouts("ffn_expert", {"blocks": blocks}, 2, 6)["experts"]
    assert layout.blocks == chosen


@pytest.mark.parametrize("blocks", ["odd", "every:0", [6], [-1], "last:7", "every:9", []])
def test_expert_blocks_that_do_not_exist_are_refused(blocks: str | list[int]) -> None:
    with pytest.raises(SciMultError, match="blocks with experts"):
        variant_layouts("ffn_expert", {"blocks": blocks}, 2, 6)


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(SciMultError, match="did you mean 'mha_expert'"):
        variant_layouts("mha_experts", {}, 3, 4)


def test_warm_start_refuses_another_number_of_experts() -> None:
    source = encoder("mha_expert").state_dict()
    with pytest.raises(CheckpointError, match="experts or added layers that the model does not"):
        warm_start(Encoder(tiny_config("vanilla")), source)
    two = Encoder(tiny_config("mha_expert", **variant_layouts("mha_expert", {}, 2, 4)))
    with pytest.raises(CheckpointError, match="experts or added layers that the model does not"):
        warm_start(two, source)
