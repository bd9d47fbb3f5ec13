"""Schedules in closed form; AdamW that skips unused experts."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.nn import Embedding, Linear
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from scimult.checkpoints import load_pretrained
from scimult.errors import ConfigError, UnknownNameError
from scimult.models import VARIANTS, Encoder, EncoderConfig, pack, variant_layouts
from scimult.training import build
from scimult.training.build import matching_names
from scimult.training.config import OptimizerConfig, PretrainConfig
from scimult.training.optim import SHARED, RoutedAdamW, parameter_groups
from scimult.training.schedules import SCHEDULES, lr_factor, warmup_steps
from tests.tiny import save_tiny_model
from tests.training.corpus import run_config

DECAYED = OptimizerConfig(lr=0.01, weight_decay=0.1)


MODERN = {"family": "modernbert", "modern": {"global_blocks": [0]}, "token_types": 0}


def model(
    variant: str = "mha_expert", options: dict[str, Any] | None = None, **changes: object
) -> Encoder:
    sizes: dict[str, object] = {
        "vocab_size": 11,
        "hidden_size": 8,
        "num_blocks": 2,
        "num_heads": 2,
        "intermediate_size": 12,
        "max_positions": 8,
    }
    layouts = variant_layouts(variant, options or {}, 3, 2)
    encoder = Encoder(EncoderConfig.model_validate(sizes | layouts | changes))
    encoder.initialise(0)
    return encoder


@pytest.mark.parametrize(
    ("variant", "options", "changes"),
    [
        *((name, {}, {}) for name in VARIANTS),
        # LayerNorms outside their sub-layer.
        ("ffn_expert", {"own_norm": False}, {}),
        ("vanilla", {}, MODERN),
    ],
)
def test_layer_norms_and_biases_are_not_decayed(
    variant: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    encoder = model(variant, options, **changes)
    groups = parameter_groups(encoder, DECAYED)
    found = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    wanted = [
        module.weight for module in encoder.modules() if isinstance(module, (Linear, Embedding))
    ]
    assert found == {id(p) for p in wanted}


@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert", "mha_ffn_expert"])
def test_groups_hold_every_parameter_once(variant: str) -> None:
    encoder = model(variant)
    groups = parameter_groups(encoder, DECAYED)
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


def test_norms_of_parts_are_exact_for_large_parts() -> None:
    """A CPU's float32 sum was off by 0.1 % at the size of MiniLM, unlike the total norm."""
    weights = [torch.nn.Parameter(torch.zeros(1 << 21)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.randn(len(weight), generator=torch.Generator().manual_seed(0))
    group = {"params": weights, "expert": SHARED, "part": "shared"}
    optimizer = RoutedAdamW([group], keeps_norms=True, lr=1e-3)
    wanted = sum(float(w.grad.double().square().sum()) for w in weights if w.grad is not None)
    optimizer.step()
    (found,) = optimizer.take_squares().tolist()
    assert found == pytest.approx(wanted, rel=1e-9)


def test_inactive_experts_stay_bit_identical_and_active_ones_follow_adamw() -> None:
    routed = model()
    plain = copy.deepcopy(routed)
    optimizer = RoutedAdamW(parameter_groups(routed, DECAYED), lr=0.01)
    optimizer.make_moments()
    reference = torch.optim.AdamW(
        [{k: v for k, v in g.items() if k != "expert"} for g in parameter_groups(plain, DECAYED)],
        lr=0.01,
        fused=True,
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
            # A sharded engine gives zero gradients to experts without rows; plain AdamW gets none.
            ours.grad = torch.zeros_like(ours) if skipped else gradient
            theirs.grad = None if skipped else gradient
        optimizer.activate(frozenset(active))
        optimizer.step()
        reference.step()
        for (name, ours), theirs in zip(routed.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)
            if theirs.grad is None:
                assert torch.equal(ours, before[name]), name
    updates = {
        group["expert"]: {int(optimizer.state[p]["step"]) for p in group["params"]}
        for group in optimizer.param_groups
    }
    assert updates == {SHARED: {4}, 0: {3}, 1: {0}, 2: {2}}


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
        ("inverse_sqrt", 4, 0.5),
        ("inverse_sqrt", 9, 1.0),
        ("inverse_sqrt", 39, 0.5),
        ("inverse_sqrt", 99, math.sqrt(0.1)),
        ("slanted_triangular", 0, 1 / 32),
        ("slanted_triangular", 5, (1 + 0.5 * 31) / 32),
        ("slanted_triangular", 10, 1.0),
        ("slanted_triangular", 55, (1 + 0.5 * 31) / 32),
        ("slanted_triangular", 100, 1 / 32),
    ],
)
def test_schedules_in_closed_form(name: str, step: int, expected: float) -> None:
    assert lr_factor(name, step, steps=100, warmup=10) == pytest.approx(expected)


@given(st.integers(1, 50), st.integers(1, 1000), st.data())
def test_schedules_as_their_papers_write_them(cut: int, rest: int, data: st.DataObject) -> None:
    steps = cut + rest
    t = data.draw(st.integers(0, steps))
    # Vaswani et al. (2017), equation 3: steps from 1, over the value at the peak.
    vaswani = min((t + 1) ** -0.5, (t + 1) * cut**-1.5) / cut**-0.5
    assert lr_factor("inverse_sqrt", t, steps, cut) == pytest.approx(vaswani)
    # Howard and Ruder (2018), equation 3, with cut_frac and ratio.
    cut_frac, ratio = cut / steps, 32
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    slanted = (1 + p * (ratio - 1)) / ratio
    assert lr_factor("slanted_triangular", t, steps, cut) == pytest.approx(slanted)


def test_linear_and_cosine_are_those_of_transformers() -> None:
    """Ours is one step ahead during warm-up, as the first of theirs has a rate of 0."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for name, schedule in (
        ("linear", get_linear_schedule_with_warmup(optimizer, 10, 100)),
        ("cosine", get_cosine_schedule_with_warmup(optimizer, 10, 100)),
    ):
        (theirs,) = schedule.lr_lambdas
        for step in range(100):
            expected = theirs(step + 1 if step < 10 else step)
            assert lr_factor(name, step, 100, 10) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_warmup_starts_at_the_peak(name: str) -> None:
    assert lr_factor(name, 0, steps=10, warmup=0) == 1.0


def learning_rates(encoder: Encoder, section: OptimizerConfig) -> dict[str, float]:
    """Return the learning rate of every parameter by name."""
    names = {id(p): name for name, p in encoder.named_parameters()}
    groups = parameter_groups(encoder, section)
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


@pytest.mark.parametrize("variant", ["vanilla", "adapters"])
def test_layer_decay_falls_from_the_last_block_to_the_embeddings(variant: str) -> None:
    encoder = model(variant)
    rates = learning_rates(encoder, OptimizerConfig(lr=1.0, layer_decay=0.5))
    assert set(rates) == {name for name, _ in encoder.named_parameters()}
    for name, rate in rates.items():
        exponent = {"embeddings": 2, "blocks.0": 1, "blocks.1": 0}[
            name[:8] if name.startswith("blocks") else name.split(".")[0]
        ]
        assert rate == 0.5**exponent, name


@pytest.mark.parametrize(
    ("variant", "part"),
    [
        ("mha_expert", r"^blocks\.1\.attention\..*\.experts\.[012]\."),
        ("adapters", r"\.adapter\."),
        ("lora", r"\.lora\."),
        ("control_codes", r"^embeddings\.codes\."),
        ("prefix", r"^instruction_encoder\."),
        ("pals", r"pal"),
    ],
)
def test_added_parts_have_their_own_learning_rate(variant: str, part: str) -> None:
    section = OptimizerConfig(lr=1.0, layer_decay=0.5, added_lr=3.0)
    rates = learning_rates(model(variant), section)
    added = {name for name, rate in rates.items() if rate == 3.0}
    assert added
    assert added == {name for name in rates if re.search(part, name)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_are_experts_by_name_what_a_variant_adds_for_all_and_the_rest(variant: str) -> None:
    names, encoder = ["links", "labels", "search"], model(variant)
    of_part: dict[str, set[int]] = {}
    for group in parameter_groups(encoder, DECAYED, names):
        of_part.setdefault(group["part"], set()).update(map(id, group["params"]))
    parameters = dict(encoder.named_parameters())
    plain = {name for name, _ in model("vanilla").named_parameters()}
    expected: dict[str, set[int]] = {}
    for name, parameter in parameters.items():
        own = re.match(r".*\.experts\.(\d)\.", name)
        if own and f"{name[: own.start(1)]}1{name[own.end(1) :]}" in parameters:
            part = f"expert/{names[int(own[1])]}"
        else:
            part = "shared" if name in plain else "added"
        expected.setdefault(part, set()).add(id(parameter))
    assert of_part == expected


def moved(config: PretrainConfig, weight: float, loss_weights: dict[str, float]) -> float:
    """Return how far nine steps move a task's own weights at loss weight ``weight``."""
    encoder = build.build_model(config).model.eval()
    optimizer, schedule = build.build_optimizer(config, encoder, 9, loss_weights)
    groups = [group for group in optimizer.param_groups if group["expert"] == 0]
    own = [parameter for group in groups for parameter in group["params"]]
    before = [parameter.detach().clone() for parameter in own]
    target_D = torch.randn(encoder.config.width, generator=torch.Generator().manual_seed(0))
    for step in range(9):
        route = step % 3
        texts = pack([np.arange(5 + step, 15 + step)])
        loss = (encoder(texts, route) @ target_D).sum() * (weight if route == 0 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.activate(frozenset({route}))
        optimizer.step()
        schedule.step()
    rates = {group["expert"]: group["initial_lr"] for group in optimizer.param_groups}
    search = loss_weights.get("search", 1.0)
    assert rates == {expert: 1e-3 * (search if expert == 0 else 1.0) for expert in rates}
    squares = [(p.detach() - old).square().sum() for p, old in zip(own, before, strict=True)]
    return math.sqrt(sum(map(float, squares)))


@pytest.mark.parametrize("variant", ["adapters", "mha_expert", "lora"])
def test_a_loss_weight_slows_the_weights_of_its_own_route(variant: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "base", variant="vanilla")
    config = run_config(tmp_path, "never", model={"variant": variant}, schedule={"steps": 9})
    far = moved(config, 1.0, {})
    # A mere factor of the loss does not change the length of Adam's steps.
    assert moved(config, 0.01, {}) > 0.9 * far
    # Even below 0.01: an up-projection that starts at 0 has small gradients for longer.
    assert 0.002 * far < moved(config, 0.01, {"search": 0.01, "classification": 1.0}) < 0.02 * far


def test_a_route_has_the_largest_weight_of_its_tasks(tmp_path: Path) -> None:
    def weights(routing: str, **by_task: float) -> dict[int, float]:
        config = run_config(tmp_path, "never", model={"routing": routing}, tasks=TASKS)
        return build.route_weights(config, by_task)

    assert weights("task", read=0.1, cited=0.5) == {0: 0.1, 1: 0.5}
    # Formats: proximity, of both, and search.
    assert weights("format", read=0.1, cited=0.5) == {0: 0.5}
    assert weights("format", read=0.1, find=2.0) == {0: 0.1, 1: 2.0}
    assert weights("task_and_side", cited=0.5) == {2: 0.5, 3: 0.5}
    # The papers that a search looks for are among those of proximity.
    assert weights("format_and_side", find=0.5) == {0: 0.5, 1: 0.5}


TASKS = [
    {"name": "read", "format": "proximity"},
    {"name": "cited", "format": "proximity"},
    {"name": "find", "format": "adhoc_search"},
]


def test_patterns_match_by_shell_rules_and_misses_name_similar_ones() -> None:
    names = [name for name, _ in model().named_parameters()]
    first = matching_names(names, ["blocks.0.*", "*.words.weight"])
    assert first == {n for n in names if n.startswith("blocks.0.") or "words" in n}
    assert matching_names(names, []) == set()
    with pytest.raises(ConfigError, match=r"'embedings\.\*'.*names such as embeddings\.\*"):
        matching_names(names, ["embedings.*"])


def test_warmup_is_a_share_below_one_and_steps_above() -> None:
    assert warmup_steps(0.05, 1000) == 50
    assert warmup_steps(0.05, 10) == 1
    assert warmup_steps(700, 1000) == 700
    assert warmup_steps(0, 1000) == 0
    assert warmup_steps(700, 100) == 100


@given(st.integers(0, 99), st.integers(1, 1_000_000))
@example(7, 100)
def test_a_share_of_steps_is_that_of_exact_numbers(percent: int, steps: int) -> None:
    assert warmup_steps(percent / 100, steps) == -(-percent * steps // 100)


def test_unknown_schedule_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cosine'"):
        lr_factor("cosin", 0, 1, 0)


def test_decay_pulls_the_values_of_a_fusion_to_the_identity() -> None:
    """AdapterFusion's regulariser, which is 0 at V = I: one step down its gradient, by autograd."""
    layouts = variant_layouts("fusion", {"width": 2}, 2, 1)
    sizes = {"hidden_size": 4, "num_blocks": 1, "num_heads": 2, "intermediate_size": 8}
    config = EncoderConfig.model_validate({"vocab_size": 9, **sizes, **layouts})
    encoder = Encoder(config).double()
    fusion = encoder.blocks[0].feed_forward.experts[0].adapter.fusion.experts[0]
    torch.nn.init.normal_(fusion.value_change.weight, generator=torch.Generator().manual_seed(0))
    value = (torch.eye(4) + fusion.value_change.weight).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(0.1 / 2 * (value - torch.eye(4)).square().sum(), value)
    groups = parameter_groups(encoder, DECAYED)
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = RoutedAdamW(groups, lr=0.01)
    optimizer.activate(frozenset({0}))
    optimizer.step()
    expected = value - 0.01 * gradient
    assert torch.allclose(torch.eye(4) + fusion.value_change.weight, expected, atol=1e-12, rtol=0)


def test_a_fusion_saved_with_its_whole_values_is_read_as_it_was(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "today", variant="fusion")
    # Loaded weights are mapped from the file that is written below.
    loaded = load_pretrained(folder).model.state_dict()
    today = {name: weight.clone() for name, weight in loaded.items()}
    weights = {}
    for name, weight in today.items():
        whole = name.replace("value_change", "value")
        weights[whole] = weight if name == whole else torch.eye(len(weight)) + weight
    assert weights.keys() != today.keys()
    save_file(weights, folder / "model.safetensors")
    for name, weight in load_pretrained(folder).model.state_dict().items():
        # 1 + w - 1 loses w's bits below those of 1.
        assert torch.allclose(weight, today[name], rtol=0, atol=2**-23), name
