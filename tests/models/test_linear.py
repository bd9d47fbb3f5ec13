"""Linear layers by oneDNN against torch's in float64, gradients of gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scimult.models import linear as module
from scimult.models.linear import Linear

# A sum of some hundred float32 products, in any order.
FLOAT32 = 1e-6


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by oneDNN also where MKL is as fast, and however little work it is."""
    monkeypatch.setattr(module, "multiplies_by_onednn", lambda: True)
    monkeypatch.setattr(module, "_LEAST_OPERATIONS", 0)


def _error(found: Tensor | None, expected: Tensor | None) -> float:
    assert found is not None
    assert expected is not None
    return float((found - expected).detach().norm() / expected.detach().norm())


def _layer(width_in: int, width_out: int, *, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(width_in, width_out, bias=bias)


@pytest.mark.parametrize("rows", [300, 33])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", ["dense", "transposed", "one number"])
def test_products_and_gradients_are_those_of_float64(shape: str, bias: bool, rows: int) -> None:
    layer = _layer(96, 160, bias=bias)
    x = torch.randn(rows, 96, requires_grad=True)
    given = {
        "dense": torch.randn(rows, 160),
        "transposed": torch.randn(160, rows).T,
        "one number": torch.ones(1, 1).expand(rows, 160),
    }[shape]
    wide, wide_x = nn.Linear(96, 160, bias=bias).double(), x.detach().double().requires_grad_()
    wide.load_state_dict({name: part.double() for name, part in layer.state_dict().items()})
    output, expected = layer(x), wide(wide_x)
    assert "Product" in type(output.grad_fn).__name__
    output.backward(given)
    expected.backward(given.double())
    assert _error(output, expected) <= FLOAT32
    assert _error(x.grad, wide_x.grad) <= FLOAT32
    for ours, theirs in zip(layer.parameters(), wide.parameters(), strict=True):
        assert _error(ours.grad, theirs.grad) <= FLOAT32


def test_only_what_is_trained_gets_a_gradient() -> None:
    layer = _layer(96, 160)
    layer.weight.requires_grad_(False)
    layer(torch.randn(33, 96)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    with torch.no_grad():
        assert layer(torch.randn(33, 96)).grad_fn is None


def test_rows_that_share_memory_are_read_as_they_are() -> None:
    layer, row = _layer(96, 160), torch.randn(1, 96)
    with torch.no_grad():
        assert torch.equal(layer(row.expand(33, 96)), layer(row.repeat(33, 1)))


def test_gradients_have_gradients() -> None:
    layer, x = _layer(96, 160), torch.randn(33, 96, requires_grad=True)
    found = []
    for outputs in (layer(x), F.linear(x, layer.weight, layer.bias)):
        (first,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, layer.weight]))
    for ours, theirs in zip(*found, strict=True):
        assert _error(ours, theirs) <= FLOAT32


def test_little_work_and_other_types_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module, "multiplies_by_onednn", lambda: True)
    assert "Product" not in type(_layer(96, 160)(torch.randn(33, 96)).grad_fn).__name__
    large = _layer(384, 1536)
    assert "Product" in type(large(torch.randn(300, 384)).grad_fn).__name__
    half = large.bfloat16()
    assert "Product" not in type(half(torch.randn(300, 384).bfloat16()).grad_fn).__name__


def test_a_layer_recomputed_for_its_gradient_gives_the_same() -> None:
    layer, x = _layer(96, 160), torch.randn(33, 96)
    plain = torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]
    kept = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(kept.square().sum(), layer.weight)[0], plain)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_sums_do_not_depend_on_where_weights_lie(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of a batch may be the only one of its route."""
    monkeypatch.setattr(module, "multiplies_by_onednn", lambda: False)
    layer, x = _layer(384, 512), torch.randn(rows, 384)
    outputs = []
    for offset in (0, 2, 4):
        place = torch.empty(512 * 384 + 32)
        start = (-place.data_ptr() // 4) % 16 + offset
        moved = place[start : start + 512 * 384].view(512, 384).copy_(layer.weight.detach())
        layer.weight = nn.Parameter(moved)
        outputs.append(layer(x))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
