"""Compiled blocks compute the same as plain ones, and are compiled once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from scimult.errors import ConfigError
from scimult.models import Encoder, PackedTexts, blocks, compiled, pack
from scimult.models.compiled import compile_blocks
from tests.models.variants import tiny_encoder

MODERN = {
    "family": "modernbert",
    "token_types": 0,
    "modern": {"global_blocks": [0, 3], "local_window": 3},
}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compile_by(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another back end compile, which knows no options."""
    through = torch.compile

    def by(function: Any, *, dynamic: bool, options: object = None) -> Any:
        return through(function, backend=backend, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", by)


def batch(rows: int, rng: np.random.Generator) -> tuple[PackedTexts, list[int]]:
    texts = pack([rng.integers(1, 50, int(n)) for n in rng.integers(3, 20, rows)])
    return texts, [row % 3 for row in range(rows)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        pytest.param("mha_expert", {}, marks=pytest.mark.slow),
        ("shared norms", {}),
        pytest.param("PALs", {}, marks=pytest.mark.slow),
        ("mha_expert", MODERN),
    ],
)
def test_all_blocks_and_routes_share_a_few_graphs_without_breaks(
    case: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, which takes the path of GPUs; the compiler's back end does nothing."""
    backend = CompileCounterWithBackend("eager")
    compile_by(backend, monkeypatch)
    model = tiny_encoder(case, **DROPOUT, **changes)
    assert compile_blocks(model) >= model.config.num_blocks
    model.to("meta")
    rng, found = np.random.default_rng(0), {}
    for mode in ("train", "first pass of a cache", "dev scores"):
        model.train(mode != "dev scores")
        for rows in (1, 3, 5, 2):
            texts, routes = batch(rows, rng)
            with torch.set_grad_enabled(mode == "train"):
                embeddings = model(texts.to("meta"), routes)
            if mode == "train":
                embeddings.sum().backward()
        found[mode] = backend.frame_count - sum(found.values())
    assert dict(counters["graph_break"]) == {}
    # Two graphs for blocks with and without a last norm; one for a first input without gradient.
    assert max(found.values()) <= 3
    assert sum(found.values()) <= 7, "beyond eight, torch gives up and runs it uncompiled"


@pytest.mark.parametrize(("known", "dropout"), [(True, 0.1), (True, 0.0), (False, 0.1)])
def test_with_dropout_sums_stay_separate_where_torch_has_the_option(
    known: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile refuses options that its version does not know."""
    option = "triton.mix_order_reduction"
    others = [name for name in torch._inductor.list_options() if name != option]
    monkeypatch.setattr(torch._inductor, "list_options", lambda: others + [option] * known)
    seen: list[dict[str, object]] = []

    def see(function: object, *, dynamic: bool, options: dict[str, object] | None = None) -> object:
        seen.extend([options] if options is not None else [])
        return function

    monkeypatch.setattr(torch, "compile", see)
    compile_blocks(tiny_encoder("shared norms", dropout=dropout))
    separate = {option: False} if known and dropout else {}
    assert seen == [{"fallback_random": True} | separate]


@pytest.mark.parametrize("case", ["LoRA", "Houlsby adapters", "fusion"])
def test_layers_that_would_be_recompiled_for_each_batch_are_refused(case: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.compile supports neither"):
        compile_blocks(tiny_encoder(case))


def equal(ours: Encoder, plain: Encoder) -> None:
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in plain.named_parameters():
        if parameter.grad is None:
            assert gradients[name] is None, name
            continue
        # The compiler fuses and reorders operations.
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.slow  # a C++ compiler, and minutes on a busy machine
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("case", "changes"), [("shared norms", {}), ("mha_ffn_expert", MODERN)])
def test_outputs_and_gradients_for_any_number_of_tokens(
    case: str, changes: dict[str, object]
) -> None:
    plain, ours = (tiny_encoder(case, **changes).double() for _ in range(2))
    compile_blocks(ours)
    rng = np.random.default_rng(0)
    graphs = []
    for rows in (3, 5, 2, 7):
        texts, routes = batch(rows, rng)
        for model in (plain, ours):
            model.zero_grad()
            torch.autograd.backward(model(texts, routes).square().sum())
        equal(ours, plain)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1], "other shapes are compiled again"


@pytest.mark.slow  # a C++ compiler, and minutes on a busy machine
@pytest.mark.timeout(900)
def test_masks_are_those_of_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding cache encodes without gradients first: another graph, the same dropout.

    With torch's dropout, as on GPUs; a batch of one route has the masks of an uncompiled model.
    """

    def of_torch(x: Tensor, probability: float, training: bool = True) -> Tensor:
        return F.dropout(x, probability, training)

    for module in (blocks, compiled):
        monkeypatch.setattr(module, "apply_dropout", of_torch)
    model = tiny_encoder("mha_expert", dropout=0.3)
    plain = copy.deepcopy(model)
    compile_blocks(model)
    for rows in (3, 5, 7):
        texts, routes = batch(rows, np.random.default_rng(rows))
        torch.manual_seed(rows)
        with torch.no_grad():
            first = model(texts, routes)
        torch.manual_seed(rows)
        second = model(texts, routes)
        torch.testing.assert_close(first, second.detach(), rtol=1e-4, atol=1e-5)
        torch.manual_seed(rows + 1)
        assert not torch.allclose(model(texts, routes), second, atol=1e-2)
        torch.manual_seed(rows)
        expected = plain(texts, 1)
        torch.manual_seed(rows)
        torch.testing.assert_close(model(texts, 1), expected, rtol=1e-4, atol=1e-5)
    assert dict(counters["graph_break"]) == {}


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_cpus_is_drawn_outside(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask reinterprets random words as other numbers, which the compiler cannot."""
    compile_by("aot_eager", monkeypatch)
    plain = tiny_encoder("mha_expert", **DROPOUT).to(dtype)
    ours = copy.deepcopy(plain)
    compile_blocks(ours)
    rng = np.random.default_rng(0)
    for rows in (3, 5, 2):
        texts, _ = batch(rows, rng)
        for model in (plain, ours):
            model.zero_grad()
            torch.manual_seed(rows)
            torch.autograd.backward(model(texts, 1).float().square().sum())
        for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None:
                assert other.grad is not None
                difference = (one.grad - other.grad).norm() / other.grad.norm()
                assert difference < (1e-5 if dtype == torch.float32 else 0.05), name
