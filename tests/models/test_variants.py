"""Properties of every variant."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from scimult.checkpoints import PretrainedConfig, load_pretrained, save_pretrained
from scimult.checkpoints.warm_start import warm_start
from scimult.errors import SciMultError
from scimult.inference import SciMult
from scimult.models import VARIANTS, embed_tokens, pack
from scimult.tasks import default_tasks
from scimult.types import Text
from tests.models.variants import (
    CASES,
    FLOAT64,
    LENGTHS,
    ROUTE_OF_ROW,
    ROUTES,
    WIDTH,
    random_weights,
    tiny_config,
    tiny_encoder,
    tiny_rows,
)
from tests.tiny import tiny_tokenizer

every_case = pytest.mark.parametrize("case", CASES)


def test_every_variant_is_among_the_cases() -> None:
    assert {variant for variant, _ in CASES.values()} == set(VARIANTS)


@pytest.mark.long
@every_case
def test_mixed_batch_equals_rows_alone_in_values_and_gradients(case: str) -> None:
    # Products of other shapes sum in another order, in kernels that differ between processors:
    # random weights amplify float32's rounding to 4e-5; float64's stays below 1e-13.
    mixed = tiny_encoder(case).double()
    separate = copy.deepcopy(mixed)
    weights = random_weights(len(LENGTHS), WIDTH)
    embedded = mixed(pack(tiny_rows()), ROUTE_OF_ROW)
    assert embedded.shape == (len(LENGTHS), WIDTH)
    (embedded * weights).sum().backward()
    for i, (row, route) in enumerate(zip(tiny_rows(), ROUTE_OF_ROW, strict=True)):
        alone = separate(pack([row]), route)[0]
        torch.testing.assert_close(embedded[i], alone, rtol=0, atol=FLOAT64)
        (alone * weights[i]).sum().backward()
    for (name, one), other in zip(mixed.named_parameters(), separate.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            scale = max(1.0, float(other.grad.abs().max()))
            assert (one.grad - other.grad).abs().max() <= FLOAT64 * scale, name


@every_case
def test_routes_differ_and_equal_calls_agree(case: str) -> None:
    model = tiny_encoder(case)
    by_route = [model(pack(tiny_rows()), route) for route in range(ROUTES)]
    assert torch.equal(by_route[0], model(pack(tiny_rows()), 0))
    same = torch.allclose(by_route[0], by_route[1], atol=1e-3)
    assert same == (not model.config.is_routed)


@every_case
def test_bfloat16_stays_close(case: str) -> None:
    model = tiny_encoder(case)
    exact = model(pack(tiny_rows()), ROUTE_OF_ROW)
    half = model.to(torch.bfloat16)(pack(tiny_rows()), ROUTE_OF_ROW)
    assert half.dtype == torch.bfloat16
    # Four blocks of random weights in 8-bit mantissas: directions agree, last digits do not.
    assert torch.cosine_similarity(half.float(), exact).min() > 0.97


@every_case
def test_no_rows_and_shortest_rows(case: str) -> None:
    model = tiny_encoder(case)
    assert model(pack([]), 0).shape == (0, WIDTH)
    assert torch.isfinite(model(pack([np.array([3])]), 1)).all()


@every_case
def test_warm_start_from_vanilla_changes_no_embedding(case: str) -> None:
    if case.startswith("control codes"):
        pytest.skip("a new code token changes what is read")
    base = tiny_encoder("vanilla").double()
    model = tiny_encoder(case, neutral=True, seed=5).double()
    warm_start(model, base.state_dict())
    embedded, expected = model(pack(tiny_rows()), 1), base(pack(tiny_rows()))
    if model.config.instructions is None:
        torch.testing.assert_close(embedded, expected, rtol=0, atol=FLOAT64)
    else:
        # The instruction matters from the first step on: all of its weights are the base's.
        assert not torch.allclose(embedded, expected, atol=1e-3)
        own = base.state_dict()
        for name, weight in model.state_dict().items():
            copied = re.sub(r"\.experts\.\d+", ".experts.0", name)
            assert torch.equal(weight, own[copied.removeprefix("instruction_encoder.")]), name


@pytest.mark.long
@every_case
def test_saved_and_loaded_again_embeds_the_same(case: str, tmp_path: Path) -> None:
    tokenizer, tasks = tiny_tokenizer(), list(default_tasks())
    model = tiny_encoder(case, vocab_size=tokenizer.vocab_size, max_positions=64)
    config = PretrainedConfig(encoder=model.config, tasks=tasks, max_length=60)
    save_pretrained(tmp_path / "m", model.state_dict(), tokenizer, config)
    again = load_pretrained(tmp_path / "m")
    assert again.config == config
    rows = tokenizer.encode([Text("paper", "a title", "a body"), Text("paper", "b")], 60)
    if model.config.instructions is not None:
        model.set_instructions(
            tokenizer.encode([Text("query", task.instruction) for task in tasks], 64)
        )
    for route in range(ROUTES):
        expected = embed_tokens(model, rows, route=route)
        assert np.array_equal(embed_tokens(again.model, rows, route=route), expected)


@pytest.mark.long
@every_case
def test_texts_longer_than_the_limit_are_cut(case: str, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_encoder(case, vocab_size=tokenizer.vocab_size, max_positions=64)
    limit = model.config.max_text_length
    config = PretrainedConfig(encoder=model.config, tasks=list(default_tasks()), max_length=limit)
    save_pretrained(tmp_path / "m", model.state_dict(), tokenizer, config)
    encoder = SciMult.from_pretrained(tmp_path / "m")
    long, cut = "word " * 100, "word " * 40
    embedded = encoder.encode([long, cut], task="search")
    # Both end at the limit with the separator.
    assert np.array_equal(embedded[0], embedded[1])
    assert np.isfinite(embedded).all()


@every_case
def test_only_layers_that_served_the_rows_get_a_gradient(case: str) -> None:
    model = tiny_encoder(case)
    model(pack(tiny_rows()), 1).sum().backward()
    names = dict(model.named_parameters())
    for name, parameter in names.items():
        head, found, tail = name.rpartition(".experts.")
        route = tail.split(".")[0]
        several = found and f"{head}.experts.1.{tail.split('.', 1)[1]}" in names
        # Fusion uses the adapters of all routes.
        mixes = model.config.adapters is not None and model.config.adapters.fusion
        foreign = several and route != "1" and not (mixes and ".fusion." not in name)
        assert (parameter.grad is None) == bool(foreign), name


def test_ways_of_routing_are_mutually_exclusive() -> None:
    with pytest.raises(ValueError, match="experts and lora are mutually exclusive"):
        tiny_config("LoRA", experts=tiny_config("mha_expert").experts)


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ("adapters", {"widht": 3}, "unknown key.*width"),
        ("vanilla", {"blocks": "every:2"}, "unknown key"),
        ("pals", {"width": 10, "heads": 3}, "width 10 is not a multiple of heads 3"),
        ("lora", {"targets": ["query", "query"]}, "twice"),
        ("lora", {"targets": ["pooler"]}, "targets"),
        ("pals", {"width": 7, "heads": 2}, "not a multiple of heads 2"),
        ("mha_expert", {"blocks": [12]}, "does not exist"),
    ],
)
def test_bad_options_are_refused(variant: str, options: dict[str, object], message: str) -> None:
    from scimult.models import variant_layouts

    with pytest.raises(SciMultError, match=message):
        variant_layouts(variant, options, 3, 4)


def test_projected_attention_drops_weights_like_the_block() -> None:
    """With the blocks' own attention kept whole, only the projected one can differ."""
    model = tiny_encoder("PALs of the code", attention_dropout=0.5).train()
    for block in model.blocks:
        block.attention.attention_dropout = 0.0
    rows = pack(tiny_rows())
    torch.manual_seed(0)
    first, second = (model(rows, ROUTE_OF_ROW) for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(model(rows, ROUTE_OF_ROW), first)
    assert not torch.allclose(first, second)
    for block in model.blocks:
        block.pal.dropout = 0.0
    without = model(rows, ROUTE_OF_ROW)
    # Without training rows attend in other groups, so float32 sums have another order.
    torch.testing.assert_close(without, model.eval()(rows, ROUTE_OF_ROW), rtol=0, atol=2e-6)


def test_dims_truncate_the_embedding() -> None:
    whole, cut = tiny_encoder("mha_expert"), tiny_encoder("mha_expert", dims=7)
    embedded = cut(pack(tiny_rows()), ROUTE_OF_ROW)
    assert torch.equal(embedded, whole(pack(tiny_rows()), ROUTE_OF_ROW)[:, :7])


@pytest.mark.parametrize("position", [0, 1, 5, -1, -2, -40])
def test_pooling_takes_the_state_at_a_position(position: int) -> None:
    model = tiny_encoder("vanilla", pooling="position", pooling_position=position).double()
    embedded = model(pack(tiny_rows()))
    states, start = model.token_states(pack(tiny_rows())), 0
    for row, length in enumerate(LENGTHS):
        within = min(position, length - 1) if position >= 0 else max(0, length + position)
        torch.testing.assert_close(embedded[row], states[start + within], rtol=0, atol=FLOAT64)
        start += length


@pytest.mark.parametrize("position", [0, -2])
@every_case
def test_the_last_block_finishes_pooled_tokens_to_the_same_states_and_gradients(
    case: str, position: int
) -> None:
    model = tiny_encoder(case, pooling="position", pooling_position=position).double()
    # A control code is one more token of each row.
    extra = int(model.config.codes is not None)
    lengths = np.array(LENGTHS) + extra
    at_B = np.cumsum(lengths) - lengths + (0 if position == 0 else lengths + position)
    weights = torch.randn(len(lengths), WIDTH, generator=torch.Generator().manual_seed(3)).double()
    found = []
    for embedded in (
        model(pack(tiny_rows()), ROUTE_OF_ROW),
        model.token_states(pack(tiny_rows()), ROUTE_OF_ROW)[torch.from_numpy(at_B)],
    ):
        model.zero_grad()
        (embedded * weights).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((embedded, {name: g.clone() for name, g in gradients.items()}))
    (ours, our_gradients), (whole, whole_gradients) = found
    torch.testing.assert_close(ours, whole, rtol=0, atol=FLOAT64)
    assert our_gradients.keys() == whole_gradients.keys()
    for name, gradient in our_gradients.items():
        # Sums over rows and routes of values of order 100.
        torch.testing.assert_close(gradient, whole_gradients[name], rtol=1e-9, atol=FLOAT64)


@every_case
def test_one_row_has_the_same_embedding_wherever_weights_lie_in_memory(case: str) -> None:
    """Of the last block only one token is left of it."""
    model = tiny_encoder(case).eval()
    found = []
    for offset in (0, 1, 2, 4):
        for parameter in model.parameters():
            place = torch.empty(parameter.numel() + 32)
            start = (-place.data_ptr() // 4) % 16 + offset
            moved = place[start : start + parameter.numel()].view(parameter.shape)
            parameter.data = moved.copy_(parameter.data)
        with torch.no_grad():
            found.append(model(pack(tiny_rows()[2:3]), 1))
    assert all(torch.equal(found[0], other) for other in found[1:])
