"""The packed kernel, which CPUs do not have: when it is used, its arguments, both ways.

On the meta device torch's own shapes and derivative of the kernel run. On the CPU a naive kernel
takes the operator's place, forward and backward, below torch's derivative.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from scimult import hardware
from scimult.models import Encoder, attention, pack, short_attention
from scimult.models.packed_attention import reads_packed_rows
from tests.models.variants import (
    CASES,
    FLOAT64,
    LENGTHS,
    ROUTE_OF_ROW,
    WIDTH,
    random_weights,
    tiny_encoder,
    tiny_rows,
)
from tests.operators import CountOperators

META = torch.device("meta")
FORWARD, BACKWARD = "_flash_attention_forward", "_flash_attention_backward"
MODERN = {
    "family": "modernbert",
    "token_types": 0,
    "modern": {"global_blocks": [0, 3], "local_window": 3},
}
# The kernel does not support extra context.
WITH_CONTEXT = ("prefix", "instruction", "experts, instructions")
WITHOUT_CONTEXT = [case for case in CASES if case not in WITH_CONTEXT]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the packed kernel on any device."""
    monkeypatch.setattr(attention, "reads_packed_rows", lambda *_: True)


@pytest.mark.long
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("case", "changes"), [*((case, {}) for case in WITHOUT_CONTEXT), ("mha_expert", MODERN)]
)
def test_every_attention_is_one_call_both_ways(
    case: str, changes: dict[str, object], dropout: float
) -> None:
    model = tiny_encoder(case, dropout=dropout, attention_dropout=dropout, **changes)
    model = model.to(META, torch.bfloat16)
    with CountOperators() as counted:
        model(pack(tiny_rows()).to(META), ROUTE_OF_ROW).sum().backward()
    calls = model.config.num_blocks * (2 if case.startswith("PALs") else 1)
    assert (counted.calls[FORWARD], counted.calls[BACKWARD]) == (calls, calls)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


def test_where_the_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that the kernel rejects, by its source (`mha_varlen_fwd` in flash_api.cpp)."""
    cards = {0: (7, 0), 1: (7, 5), 2: (8, 0), 3: (8, 6), 4: (9, 0), 5: (12, 0)}
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: cards[device.index])

    def taken(card: int, dtype: torch.dtype, width: int = 64) -> bool:
        return reads_packed_rows.__wrapped__(torch.device("cuda", card), dtype, width)

    for card, capability in cards.items():
        for dtype in (torch.float16, torch.bfloat16):
            assert taken(card, dtype) == (capability >= (8, 0))
        assert not taken(card, torch.float32)
    # 17: PALs of BERT-base; 26: TinyBERT; padded to the next multiple of 8.
    assert all(taken(4, torch.bfloat16, width) for width in (17, 26, 32, 64, 128, 192))
    assert not taken(4, torch.bfloat16, 200)
    assert not reads_packed_rows.__wrapped__(torch.device("cpu"), torch.bfloat16, 64)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert not taken(4, torch.bfloat16)


def test_where_short_rows_have_kernels_of_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cards = {0: (7, 5), 1: (8, 0), 2: (9, 0)}
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(hardware, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: cards[device.index])

    def taken(card: int, dtype: torch.dtype = torch.bfloat16, width: int = 64) -> bool:
        return short_attention.reads_short_rows.__wrapped__(
            torch.device("cuda", card), dtype, width
        )

    # This torch cannot make the tensor of the trial, as Triton elsewhere finds no compiler.
    if not torch.cuda.is_available():
        assert not taken(1)
        # AssertionError by a build for CPUs, RuntimeError by one for CUDA without a driver.
        assert re.search(r"slower attention: Triton failed \((Assertion|Runtime)Error", caplog.text)
    monkeypatch.setattr(short_attention, "_starts", lambda *_: True)
    assert [taken(card) for card in cards] == [False, True, True]
    assert [width for width in (16, 17, 32, 64, 96) if taken(2, width=width)] == [16, 32, 64]
    assert not taken(2, torch.float32)
    monkeypatch.setattr(hardware, "find_spec", lambda name: None)
    assert not taken(2)


def test_more_rows_than_the_grid_has_are_padded(
    monkeypatch: pytest.MonkeyPatch, everywhere: None
) -> None:
    model = tiny_encoder("vanilla").to(META, torch.bfloat16)
    monkeypatch.setattr(attention, "MOST_ROWS", len(LENGTHS) - 1)
    with CountOperators() as counted:
        model(pack(tiny_rows()).to(META))
    assert counted.calls[FORWARD] == 0


def weights_of_rows(
    q_THK: Tensor, k_THK: Tensor, bounds: Tensor, scale: float, window: int | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the tokens of each row and their attention weights, shape ``(H, L, L)``."""
    for first, last in bounds.unfold(0, 2, 1).tolist():
        row = slice(first, last)
        scores_HLL = torch.einsum("ihk,jhk->hij", q_THK[row], k_THK[row]) * scale
        away_LL = (torch.arange(last - first)[None] - torch.arange(last - first)[:, None]).abs()
        if window is not None:
            scores_HLL = scores_HLL.masked_fill(away_LL > window, float("-inf"))
        yield row, scores_HLL.softmax(-1)


class NaiveKernel:
    """Replaces torch's kernel on CPUs; rejects what that one rejects."""

    def __init__(self) -> None:
        self.dropouts: list[float] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        bounds, bounds_k, longest, longest_k, dropout, causal, debug = args
        assert bounds.dtype == bounds_k.dtype == torch.int32
        assert bounds.is_contiguous()
        assert bounds.tolist() == bounds_k.tolist()
        assert bounds[-1] == len(q)
        assert longest == longest_k == int(bounds.diff().max())
        assert all(x.shape[-1] % 8 == 0 and x.stride(-1) == 1 for x in (q, k, v))
        assert not causal
        assert not debug
        self.dropouts.append(dropout)
        output = torch.empty_like(q)
        for row, weights in weights_of_rows(q, k, bounds, options["scale"], self._window(options)):
            output[row] = torch.einsum("hij,jhk->ihk", weights, v[row])
        state = torch.zeros(2, dtype=torch.uint64)
        return output, q.new_zeros(q.shape[1], len(q)), state, state[0], q.new_zeros(0)

    def backward(
        self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any
    ) -> Any:
        bounds, scale = args[2], options["scale"]
        of_q, of_k, of_v = (torch.empty_like(x) for x in (q, k, v))
        for row, weights in weights_of_rows(q, k, bounds, scale, self._window(options)):
            of_v[row] = torch.einsum("hij,ihk->jhk", weights, gradient[row])
            of_weights = torch.einsum("ihk,jhk->hij", gradient[row], v[row])
            of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
            of_q[row] = torch.einsum("hij,jhk->ihk", of_scores, k[row]) * scale
            of_k[row] = torch.einsum("hij,ihk->jhk", of_scores, q[row]) * scale
        return of_q, of_k, of_v

    @staticmethod
    def _window(options: dict[str, Any]) -> int | None:
        before, after = options.get("window_size_left"), options.get("window_size_right")
        assert before == after
        return None if before is None else int(before)


@pytest.fixture
def kernel(everywhere: None) -> Iterator[NaiveKernel]:
    """Implement the operator on CPUs."""
    made = NaiveKernel()
    library = torch.library.Library("aten", "IMPL")
    library.impl(FORWARD, made.forward, "CPU")
    library.impl(BACKWARD, made.backward, "CPU")
    yield made
    library._destroy()


def embeddings_and_gradients(model: Encoder) -> tuple[Tensor, dict[str, Tensor]]:
    embedded = model(pack(tiny_rows()), ROUTE_OF_ROW)
    (embedded * random_weights(len(LENGTHS), WIDTH)).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return embedded.detach(), gradients


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "changes"), [*((case, {}) for case in WITHOUT_CONTEXT), ("mha_expert", MODERN)]
)
def test_the_kernel_gets_what_the_padded_attention_gets(
    case: str,
    changes: dict[str, object],
    kernel: NaiveKernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = tiny_encoder(case, **changes).double()
    padded = copy.deepcopy(packed)
    ours, our_gradients = embeddings_and_gradients(packed)
    calls = len(kernel.dropouts)
    assert calls >= packed.config.num_blocks
    monkeypatch.setattr(attention, "reads_packed_rows", lambda *_: False)
    expected, gradients = embeddings_and_gradients(padded)
    assert len(kernel.dropouts) == calls
    torch.testing.assert_close(ours, expected, rtol=0, atol=FLOAT64)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        assert (our_gradients[name] - gradient).abs().max() <= FLOAT64 * scale, name


def test_the_kernel_drops_out_only_in_training(kernel: NaiveKernel) -> None:
    model = tiny_encoder("PALs", attention_dropout=0.3)
    model(pack(tiny_rows()), ROUTE_OF_ROW)
    # Every block attends twice; projected attention drops out as the block does.
    assert kernel.dropouts == [0.3] * 8
    kernel.dropouts.clear()
    model.eval()(pack(tiny_rows()), ROUTE_OF_ROW)
    assert set(kernel.dropouts) == {0.0}
