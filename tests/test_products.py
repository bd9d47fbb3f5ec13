"""Matrix products with the fastest kernels. Legend: N, M rows, D width."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult import products as module
from scimult.errors import ConfigError
from scimult.products import (
    ByteMatrix,
    gelu_between,
    largest_weight,
    multiplies_by_onednn,
    multiplies_bytes,
    pack_linears,
    products,
    round_linears,
)


def _rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 70), m=st.integers(0, 40), width=st.integers(1, 200))
def test_products_are_those_of_float64(n: int, m: int, width: int) -> None:
    x_ND, y_MD = _rows(n, width, 1), _rows(m, width, 2)
    found_NM = products(x_ND, y_MD)
    wanted_NM = x_ND.double() @ y_MD.double().T
    # A sum of D products, each rounded, is off by D u |x|·|y| at most (u = 2**-24).
    allowed_NM = width * 2.0**-24 * (x_ND.double().abs() @ y_MD.double().abs().T)
    assert found_NM.shape == (n, m)
    assert found_NM.is_contiguous()
    assert ((found_NM - wanted_NM).abs() <= allowed_NM).all()


def test_without_onednn_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    x_ND, y_MD = _rows(20, 16, 6), _rows(9, 16, 7)
    monkeypatch.setattr(module, "multiplies_by_onednn", lambda: False)
    monkeypatch.setattr(module, "multiplies_few_by_onednn", lambda: False)
    assert torch.equal(products(x_ND, y_MD), torch.mm(x_ND, y_MD.T))


has_bytes = pytest.mark.skipif(largest_weight() is None, reason="no products of bytes here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_linears_multiply_as_before(dtype: torch.dtype, bias: bool) -> None:
    linear = torch.nn.Linear(48, 33, bias=bias).to(dtype).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
    x_ND = _rows(29, 48, 10).to(dtype)
    wanted_NM = linear(x_ND)
    pack_linears(torch.nn.Sequential(linear))
    for rows in (29, 1, 0):
        found_NM = linear(x_ND[:rows])
        assert found_NM.dtype == dtype
        # Both are rounded to the type after a sum that may be taken in another order.
        step = 2.0**-7 if dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(found_NM, wanted_NM[:rows], rtol=step, atol=step)
    after = linear.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_two_linears_with_gelu_equal_all_three_in_turn(
    bias: bool, dtype: torch.dtype, approximate: str, packs: bool
) -> None:
    inner, output = (
        torch.nn.Linear(*sizes, bias=bias).to(dtype).requires_grad_(False)
        for sizes in ((48, 33), (33, 20))
    )
    x_ND = 4 * _rows(29, 48, 12).to(dtype)
    wanted_NM = x_ND.double()
    for linear in (inner, output):
        wanted_NM = torch.nn.functional.linear(wanted_NM, linear.weight.double())
        if linear.bias is not None:
            wanted_NM += linear.bias.double()
        if linear is inner:
            wanted_NM = torch.nn.functional.gelu(wanted_NM, approximate=approximate)
    if packs:
        pack_linears(torch.nn.Sequential(inner, output))
    for rows in (29, 1, 0):
        found_NM = gelu_between(inner, output, x_ND[:rows], approximate)
        assert found_NM.dtype == dtype
        # Of rounding to bfloat16: of both linears' results, and of GELU's unless packed.
        step = 2.0**-6 if dtype == torch.bfloat16 else 4e-6
        torch.testing.assert_close(found_NM.double(), wanted_NM[:rows], rtol=step, atol=step)


@has_bytes
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("rows", [0, 1, 512, 1300])
def test_rounded_linears_take_some_rows_at_a_time(rows: int, approximate: str) -> None:
    inner, output = _rounded(48, 33, 64), _rounded(33, 20, 64)
    x_ND = _rows(rows, 48, 12)
    found_NM = gelu_between(inner, output, x_ND, approximate)
    hidden_NF = torch.nn.functional.gelu(inner(x_ND), approximate=approximate)
    # Vectors of eight and the rest of a tensor round GELU differently, which moves a byte.
    torch.testing.assert_close(found_NM, output(hidden_NF), rtol=0, atol=2e-2)
    assert found_NM.shape == (rows, 20)
    # A linear's own blocks: no row depends on others.
    alone_NF = torch.cat([x_ND.new_empty(0, 33), *(inner(x_ND[i : i + 1]) for i in range(rows))])
    assert torch.equal(inner(x_ND), alone_NF)


@pytest.mark.skipif(not multiplies_by_onednn(), reason="this CPU has no AVX-512")
def test_weights_are_packed_here_and_not_on_other_devices() -> None:
    here, elsewhere = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, device="meta")
    pack_linears(torch.nn.ModuleList([here, elsewhere]))
    assert "forward" in vars(here)
    assert "forward" not in vars(elsewhere)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("rounds", [False, pytest.param(True, marks=has_bytes)])
def test_packed_linears_can_be_copied_and_sent(
    copied: Callable[[torch.nn.Module], torch.nn.Module],
    rounds: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scimult.products.multiplies_by_onednn", lambda: True)
    model = torch.nn.Sequential(torch.nn.Linear(48, 33)).requires_grad_(False)
    round_linears(model, 64) if rounds else pack_linears(model)
    assert "forward" in vars(model[0])
    x_ND = _rows(29, 48, 11)
    other = copied(model)
    torch.testing.assert_close(other(x_ND), model(x_ND), rtol=0, atol=0)
    # It has its own weights, and sends them once.
    assert other[0].forward._linear is other[0]
    assert len(pickle.dumps(model)) < 4 * 48 * 33 + 4_000


@has_bytes
def test_a_rounded_model_is_refused_where_its_products_would_be_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(48, 33)).requires_grad_(False)
    round_linears(model, 64)
    sent = pickle.dumps(model)
    monkeypatch.setattr("scimult.products.largest_weight", lambda: None)
    model(_rows(3, 48, 12))  # packed on the right CPU
    with pytest.raises(ConfigError, match="int8 model of another CPU.*load the model here"):
        pickle.loads(sent)(_rows(3, 48, 12))


# Weights of eight bits need units of their own; those of seven are right on any CPU.
@pytest.mark.skipif(not multiplies_bytes(), reason="this CPU multiplies no bytes")
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 40),
    queries=st.integers(1, 40),
    width=st.integers(1, 300),
)
def test_sums_of_bytes_are_those_of_whole_numbers(
    seed: int, rows: int, queries: int, width: int
) -> None:
    """Exact up to the conversion to float32: integers up to 2**24, times a step of 1."""
    rng = np.random.default_rng(seed)
    bytes_ND = rng.integers(0, 256, (rows, width), dtype=np.uint8)
    numbers_MD = rng.integers(-128, 128, (queries, width), dtype=np.int8)
    steps_M, bias_M = torch.ones(queries), torch.zeros(queries)
    matrix = ByteMatrix.of(torch.from_numpy(numbers_MD), steps_M, bias_M)
    wanted_NM = (bytes_ND.astype(np.int64) - 128) @ numbers_MD.astype(np.int64).T
    assert np.array_equal(matrix.products(torch.from_numpy(bytes_ND)).numpy(), wanted_NM)
    halved = ByteMatrix.of(torch.from_numpy(numbers_MD), 0.5 * steps_M, bias_M + 3)
    found_NM = halved.products(torch.from_numpy(bytes_ND)).numpy()
    assert np.array_equal(found_NM, 0.5 * wanted_NM + 3)


LARGEST = [64, *([127] if multiplies_bytes() else [])]


def _rounded(width: int, height: int, largest: int, *, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(width)
    linear = torch.nn.Linear(width, height, bias=bias)
    round_linears(torch.nn.Sequential(linear), largest)
    return linear


@has_bytes
@pytest.mark.parametrize("largest", LARGEST)
@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 40), m=st.integers(1, 70), width=st.integers(1, 200), bias=st.booleans())
def test_rounded_linears_by_whole_numbers(
    largest: int, n: int, m: int, width: int, bias: bool
) -> None:
    linear = _rounded(width, m, largest, bias=bias)
    x_ND = _rows(n, width, 3)
    weight_MD = linear.weight.detach().double().numpy()
    steps_M1 = np.abs(weight_MD).max(axis=1, keepdims=True) / largest
    steps_N1 = x_ND.abs().amax(dim=1, keepdim=True).double().numpy() / 127
    whole_ND = np.rint(x_ND.double().numpy() / np.maximum(steps_N1, 1e-300))
    sums_NM = whole_ND @ np.rint(weight_MD / steps_M1).T
    wanted_NM = sums_NM * steps_N1 * steps_M1.T
    if linear.bias is not None:
        wanted_NM += linear.bias.detach().double().numpy()
    found_NM = linear(x_ND).detach().double().numpy()
    # A number that lies between two steps may be rounded to either, in float32 or in float64.
    either_NM = steps_N1 * np.abs(weight_MD).max(axis=1) + np.abs(x_ND.numpy()).max(
        axis=1, keepdims=True
    ) * (steps_M1.T)
    assert found_NM.shape == (n, m)
    assert (np.abs(found_NM - wanted_NM) <= 1e-5 + either_NM).all()
    close_NM = np.isclose(found_NM, wanted_NM, rtol=1e-5, atol=1e-5)
    assert not n or close_NM.mean() > 0.9
    # Against the linear itself: half a step of each factor of each product.
    plain_NM = torch.nn.functional.linear(x_ND, linear.weight, linear.bias).detach().numpy()
    sizes_ND, sizes_MD = np.abs(x_ND.numpy()), np.abs(weight_MD)
    allowed_NM = (
        0.5 * steps_N1 * sizes_MD.sum(axis=1)
        + 0.5 * steps_M1.T * sizes_ND.sum(axis=1, keepdims=True)
        + width * 0.25 * steps_N1 * steps_M1.T
    )
    assert (np.abs(found_NM - plain_NM) <= 1.001 * allowed_NM + 1e-5).all()


@has_bytes
@pytest.mark.parametrize("largest", LARGEST)
def test_a_row_of_a_rounded_linear_depends_on_no_other(largest: int) -> None:
    linear = _rounded(96, 48, largest)
    x_ND = _rows(30, 96, 4) * torch.logspace(-3, 3, 30)[:, None]
    x_ND[7] = 0
    whole_NM = linear(x_ND)
    for row in range(30):
        assert torch.equal(linear(x_ND[row : row + 1])[0], whole_NM[row])
    assert torch.equal(whole_NM[7], linear.bias)
    assert torch.equal(linear(x_ND.view(5, 6, 96)), whole_NM.view(5, 6, 48))
    x_ND[3, 5] = float("nan")
    assert linear(x_ND)[3].isnan().all()


@has_bytes
@pytest.mark.parametrize("largest", LARGEST)
def test_large_columns_do_not_decide_the_steps_of_all(largest: int) -> None:
    """As in the inputs of queries, keys and values of BERT, some of which are 30 times the rest."""
    torch.manual_seed(5)
    linear = torch.nn.Linear(96, 48).requires_grad_(False)
    x_ND = _rows(200, 96, 5)
    x_ND[:, [3, 60]] *= 40
    linear.weight[:, [3, 60]] /= 40
    range_D = x_ND.abs().amax(dim=0)
    range_D[7] = 0  # empty in the texts that were seen, not in these
    plain_NM = linear(x_ND)
    errors = []
    for ranges in ({}, {linear: range_D}):
        round_linears(linear, largest, ranges)
        errors.append((linear(x_ND) - plain_NM).norm())
        linear.forward = partial(torch.nn.Linear.forward, linear)
    assert errors[1] < 0.3 * errors[0]


@has_bytes
def test_ranges_move_powers_of_two_from_inputs_to_weights() -> None:
    linear, moved = (torch.nn.Linear(40, 30).requires_grad_(False) for _ in range(2))
    power_D = torch.tensor([1.0, 2, 2, 4]).repeat(10)
    moved.weight[:] = linear.weight * power_D
    moved.bias[:] = linear.bias
    # Ranges that give these powers, and none that lies between two.
    range_D = power_D.square() * linear.weight.abs().amax(dim=0) * 1.1
    round_linears(linear, 64, {linear: range_D})
    round_linears(moved, 64)
    x_ND = _rows(20, 40, 6)
    assert torch.equal(linear(x_ND), moved(x_ND / power_D))


@has_bytes
def test_rounding_leaves_weights_as_they_are() -> None:
    linear = torch.nn.Linear(20, 30)
    before = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
    round_linears(linear, 64)
    assert list(linear.state_dict()) == list(before)
    assert all(torch.equal(linear.state_dict()[name], tensor) for name, tensor in before.items())
