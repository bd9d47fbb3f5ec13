"""Instructions, adapters, low-rank updates, projected attention and codes against formulas.

Both sides run in float64, where sums in another order agree to 1e-10: a wrong formula cannot
hide behind rounding, which fused adapters with random weights amplify in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scimult.models import Encoder, pack
from tests.models import naive
from tests.models.variants import (
    FLOAT64,
    INSTRUCTIONS,
    LENGTHS,
    ROUTE_OF_ROW,
    ROUTES,
    WIDTH,
    random_weights,
    tiny_encoder,
    tiny_rows,
)

BLOCKS = 4


def compare(model: Encoder, one_row: Callable[[dict[str, Tensor], Tensor, int], Tensor]) -> None:
    """Compare values and gradients of a mixed batch with ``one_row`` applied to each row."""
    model = model.double()
    weights = dict(model.named_parameters())
    factors = random_weights(len(LENGTHS), WIDTH)
    embedded = model(pack(tiny_rows()), ROUTE_OF_ROW)
    ours = torch.autograd.grad((embedded * factors).sum(), weights.values(), allow_unused=True)
    rows = [
        one_row(weights, torch.from_numpy(row), route)
        for row, route in zip(tiny_rows(), ROUTE_OF_ROW, strict=True)
    ]
    expected = torch.stack(rows)
    torch.testing.assert_close(embedded, expected, rtol=0, atol=FLOAT64)
    theirs = torch.autograd.grad((expected * factors).sum(), weights.values(), allow_unused=True)
    for name, one, other in zip(weights, ours, theirs, strict=True):
        other = torch.zeros_like(weights[name]) if other is None else other
        one = torch.zeros_like(weights[name]) if one is None else one
        assert (one - other).abs().max() <= FLOAT64 * max(1.0, float(other.abs().max())), name


def test_equation_4_with_shared_parameters() -> None:
    compare(
        tiny_encoder("instruction"),
        lambda weights, tokens, route: naive.with_instruction(
            weights, tokens, torch.from_numpy(INSTRUCTIONS[route]), BLOCKS
        )[0],
    )


def test_equation_4_with_an_instruction_encoder() -> None:
    compare(
        tiny_encoder("prefix"),
        lambda weights, tokens, route: naive.with_prefix(
            weights, tokens, torch.from_numpy(INSTRUCTIONS[route]), BLOCKS
        )[0],
    )


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("Pfeiffer adapters", {}),
        ("Houlsby adapters", {"placement": "houlsby"}),
        ("fusion", {}),
        ("fusion, Houlsby", {"placement": "houlsby"}),
        ("LoRA", {"scale": 16 / 2}),
        ("LoRA everywhere", {"scale": 16 / 3}),
        ("PALs", {"pal_heads": 2}),
        ("PALs of the code", {"pal_heads": 2, "pal_gelu": True}),
    ],
)
def test_added_layers(case: str, settings: dict[str, object]) -> None:
    compare(
        tiny_encoder(case),
        lambda weights, tokens, route: naive.routed(
            weights, tokens, route, blocks=BLOCKS, routes=ROUTES, **settings
        )[0],
    )


@pytest.mark.parametrize(("case", "place"), [("control codes", 1), ("control codes, CLS", 0)])
def test_control_codes(case: str, place: int) -> None:
    compare(
        tiny_encoder(case),
        lambda weights, tokens, route: naive.routed(
            weights, tokens, route, blocks=BLOCKS, code=route
        )[place],
    )


def test_instruction_states_can_be_reused() -> None:
    for case in ("instruction", "prefix"):
        model = tiny_encoder(case).double()
        states = model.read_instructions(range(ROUTES))
        again = model(pack(tiny_rows()), ROUTE_OF_ROW, states)
        torch.testing.assert_close(
            again, model(pack(tiny_rows()), ROUTE_OF_ROW), rtol=0, atol=FLOAT64
        )


def test_experts_that_read_instructions_are_the_instruction_variant_of_each_route() -> None:
    """With a route's experts as the layers of a plain encoder, itself compared with naive above."""
    model = tiny_encoder("experts, instructions").double()
    embedded = model(pack(tiny_rows()), ROUTE_OF_ROW)
    names = model.state_dict().keys()
    for route in range(ROUTES):
        weights = {}
        for name, weight in model.state_dict().items():
            bank, _, rest = name.partition(".experts.")
            expert = rest.partition(".")[0]
            shared = not any(other.startswith(f"{bank}.experts.1.") for other in names)
            if shared or expert == str(route):
                alone = name if shared else name.replace(f".experts.{expert}.", ".experts.0.")
                weights[alone] = weight
        plain = tiny_encoder("instruction").double()
        plain.load_state_dict(weights)
        rows = [place for place, of_row in enumerate(ROUTE_OF_ROW) if of_row == route]
        expected = plain(pack([tiny_rows()[place] for place in rows]), route)
        torch.testing.assert_close(embedded[rows], expected, rtol=0, atol=FLOAT64)


def test_another_instruction_is_another_embedding() -> None:
    model = tiny_encoder("instruction").double()
    states = model.read_instructions([0], {0: INSTRUCTIONS[1]})
    changed = model(pack(tiny_rows()), 0, states)
    torch.testing.assert_close(changed, model(pack(tiny_rows()), 1), rtol=0, atol=FLOAT64)
    assert not torch.allclose(changed, model(pack(tiny_rows()), 0), atol=1e-3)
